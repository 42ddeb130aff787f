"""The script sets an attribute of one layer after the model was made."""

import torch
from torch import nn

from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (
        call("Functional.leaky_relu", "layers.1", marker="use"),
        call("Functional.leaky_relu", "layers.1.act", marker=None),
    ),
    ("semantic",),
    step=0,
    chain=(r"self\.slope.*0\.2",),
)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 32)
        self.slope = 0.1

    def forward(self, x):
        return x + nn.functional.leaky_relu(self.inner(x), self.slope)  # use


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main(variant):
    torch.manual_seed(0)
    model = Model()
    if variant == "target":
        model.layers[1].slope = 0.2
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
