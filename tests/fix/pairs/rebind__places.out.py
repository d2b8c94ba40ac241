class Net:
    scale = torch.ones(3)

    def forward(self, feats, states):
        self.h = self.h + 1  # WRITE an attribute
        self.cells[0] = self.cells[0].mul(2)  # WRITE an item
        feats["a"] = feats["a"] * feats["b"]  # WRITE a dict item
        states[-1].h = states[-1].h.tanh()  # WRITE
        Net.scale = Net.scale * 2  # WRITE a class attribute
        return self.h
