class Steer:
    def __call__(self, module, inputs, output):
        if self.on:
            output = output.add(self.vector)  # WRITE
        self.seen.append(output.norm())
        return output

    def off(self): self.on = False
