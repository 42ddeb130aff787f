"""The LSTM cell takes its gates in another order than the weights have."""

import torch

from bench.zoo.models import sequence
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

ORIGIN = Truth(
    (call("Torch.sigmoid", "cell"), module("cell", "Cell")), ("semantic", "input"), step=0, repair=("output.1 ",)
)


class Cell(sequence.Cell):
    def forward(self, x, h, c):
        i, g, f, o = (self.input(x) + self.hidden(h)).chunk(4, dim=-1)
        keep = torch.sigmoid(f) * c  # origin
        c = keep + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


def main(variant):
    torch.manual_seed(0)
    model = sequence.LSTMModel()
    if variant == "target":
        model.cell.__class__ = Cell
    return train(model, token_batches(2, length=6))


if __name__ == "__main__":
    run(main)
