class Net:
    def kernel(self):
        if self.kept is None:
            at = torch.arange(5.0)

            self.kept = at * self.width  # WRITE ONCE self.kept
        return self.kept
