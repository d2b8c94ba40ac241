class Block(nn.Module):
    def __init__(self, act=nn.ReLU):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)  # at the constructor
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.relu(torch.tanh(x)))  # WRITE
