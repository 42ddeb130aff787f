"""Inductor lets a new tensor share the memory of a buffer that is cleared after it (pytorch issue 198094)."""

import torch
from torch import nn

from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, compiled

OPTIONS = ("--compiled", "inside")
ORIGIN = Truth((compiled(),), ("device",))


class Window(nn.Module):
    """Gives the window with the newest rows in it, and empties it."""

    def __init__(self, length=6, width=8):
        super().__init__()
        self.register_buffer("window", torch.linspace(0, 1, length * width).view(length, width))

    def forward(self, x):
        rows = torch.slice_scatter(self.window, x, dim=0, start=1, end=3)  # origin
        self.window.zero_()  # origin
        return rows


def main(variant):
    torch.manual_seed(0)
    window, model = Window(), nn.Sequential(nn.Tanh(), nn.Linear(8, 3))
    if variant == "target":
        window = torch.compile(window)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(2):
        loss = model(window(torch.randn(2, 8))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
