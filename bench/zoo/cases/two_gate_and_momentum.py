"""The cell's output is not squashed, and the optimizer has another momentum."""

import torch

from bench.zoo.models import sequence
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, missing, optimizer

ORIGIN = Truth(
    (missing("Torch.tanh", "cell", marker="squash"),),
    ("semantic",),
    step=0,
    second=(optimizer("SGD"),),
)


class Cell(sequence.Cell):
    variant = "reference"

    def forward(self, x, h, c):
        i, f, g, o = (self.input(x) + self.hidden(h)).chunk(4, dim=-1)
        keep = torch.sigmoid(f) * c
        c = keep + torch.sigmoid(i) * torch.tanh(g)
        out = c
        if self.variant == "reference":
            out = torch.tanh(c)  # squash
        return torch.sigmoid(o) * out, c


def main(variant):
    torch.manual_seed(0)
    model = sequence.LSTMModel()
    model.cell.__class__ = Cell
    model.cell.variant = variant
    momentum = 0.5 if variant == "target" else 0.9
    return train(model, token_batches(3), optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum))


if __name__ == "__main__":
    run(main)
