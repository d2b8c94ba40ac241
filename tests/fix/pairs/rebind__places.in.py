class Net:
    scale = torch.ones(3)

    def forward(self, feats, states):
        self.h += 1  # WRITE an attribute
        self.cells[0].mul_(2)  # WRITE an item
        feats["a"] *= feats["b"]  # WRITE a dict item
        states[-1].h.tanh_()  # WRITE
        Net.scale *= 2  # WRITE a class attribute
        return self.h
