"""A ResNet was written anew with other names and nesting; its batch norms have another library's eps."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

PATH = "encoder.0.layer.0.normalization"
ORIGIN = Truth(
    (module(PATH, "BatchNorm2d"), call("Functional.batch_norm", PATH, marker=None)),
    ("semantic",),
    step=0,
    repair=("eps=1e-05", "eps=1e-5"),
)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class Before(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layer1, self.layer2 = Block(width), Block(width)
        self.fc = nn.Linear(width, 10)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


class ConvNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.normalization = nn.BatchNorm2d(width, eps=1e-3)

    def forward(self, hidden_state):
        return self.normalization(self.convolution(hidden_state))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Sequential(ConvNorm(width), nn.ReLU(), ConvNorm(width))
        self.activation = nn.ReLU()

    def forward(self, hidden_state):
        return self.activation(self.layer(hidden_state) + hidden_state)


class After(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embedder = nn.Conv2d(3, width, 3, padding=1)
        self.encoder = nn.Sequential(Residual(width), Residual(width))
        self.classifier = nn.Linear(width, 10)

    def forward(self, pixel_values):
        return self.classifier(self.encoder(self.embedder(pixel_values)).mean((2, 3)))


def main(variant):
    torch.manual_seed(0)
    model = Before()
    if variant == "target":
        before, model = model, After()
        model.load_state_dict(dict(zip(model.state_dict(), before.state_dict().values(), strict=True)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(5)
    values = []
    for _ in range(2):
        x = torch.randn(6, 3, 8, 8, generator=generator)
        loss = F.cross_entropy(model(x), torch.arange(6))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
