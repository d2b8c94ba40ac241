class Steer:
    def __call__(self, module, inputs, output):
        if self.on:
            output.add_(self.vector)  # WRITE
        self.seen.append(output.norm())

    def off(self): self.on = False
