import torch


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((2,), float(index))


if __name__ == "__main__":
    weight = torch.ones(2, requires_grad=True)
    for batch in torch.utils.data.DataLoader(Data(), num_workers=2):
        (batch * weight).sum().backward()
    print(weight.grad.tolist())
