"""A scripted model, and a loader with two workers, against the eager model and none."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.zoo.script import run

CONTROL = True


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(7, 20), nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.silu(self.a(x)))


def main(variant):
    torch.manual_seed(0)
    rows = torch.randn(12, 7)
    data = TensorDataset(rows, rows[:, :3].argmax(1))
    model = Net()
    used = torch.jit.script(model) if variant == "target" else model
    loader = DataLoader(data, batch_size=4, num_workers=2 if variant == "target" else 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for x, y in loader:
        loss = F.cross_entropy(used(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
