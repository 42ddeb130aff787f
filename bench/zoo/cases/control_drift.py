"""Forty layers with another order of sums: drift, no origin."""

import torch
from torch import nn

from bench.zoo.models.training import class_loss, train
from bench.zoo.script import run

CONTROL = True


class Layer(nn.Module):
    variant = "reference"

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 48)

    def forward(self, x):
        weight = self.linear.weight
        if self.variant == "target":
            h = x[:, :24] @ weight[:, :24].t() + x[:, 24:] @ weight[:, 24:].t()
        else:
            h = x @ weight.t()
        return x + torch.tanh(h + self.linear.bias)


def main(variant):
    torch.manual_seed(0)
    Layer.variant = variant
    model = nn.Sequential(*(Layer() for _ in range(40)), nn.Linear(48, 4))
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 48, generator=generator), torch.randint(4, (8,), generator=generator)) for _ in "ab"]
    return train(model, batches, class_loss)


if __name__ == "__main__":
    run(main)
