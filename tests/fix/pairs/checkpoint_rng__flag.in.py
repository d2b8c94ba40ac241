for block in self.blocks:
    x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # WRITE
