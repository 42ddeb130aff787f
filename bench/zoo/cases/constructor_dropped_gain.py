"""The constructor of a residual branch sets its gain for twice as many layers."""

import torch
from torch import nn

from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Tensor.mul", "layers.0", marker="use"),),
    ("semantic",),
    step=0,
    chain=(r"self\.gain.*@cause",),
)


class Layer(nn.Module):
    def __init__(self, size, layers):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(size), nn.Linear(size, size)
        self.gain = (2 * layers) ** -0.5  # cause

    def forward(self, x):
        return x + torch.tanh(self.inner(self.norm(x))) * self.gain  # use


class Model(nn.Module):
    def __init__(self, layers, counted):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(Layer(32, counted) for _ in range(layers))
        self.head = nn.Linear(32, 64)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main(variant):
    torch.manual_seed(0)
    return train(Model(3, 6 if variant == "target" else 3), token_batches(2))


if __name__ == "__main__":
    run(main)
