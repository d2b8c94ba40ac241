for name, value in feats.items():
    value *= 0.5  # WRITE
