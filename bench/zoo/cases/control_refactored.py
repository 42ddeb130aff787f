"""The same ResNet after a refactoring: other names, other nesting, activations as functions, weights carried over."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Bottleneck(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + x)


class Before(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layer1 = Bottleneck(width)
        self.layer2 = Bottleneck(width)
        self.fc = nn.Linear(width, 10)

    def forward(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(x.mean((2, 3)))


class ConvNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.normalization = nn.BatchNorm2d(width)

    def forward(self, hidden_state):
        return self.normalization(self.convolution(hidden_state))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.ModuleList([ConvNorm(width), ConvNorm(width)])

    def forward(self, hidden_state):
        residual = hidden_state
        hidden_state = F.relu(self.layer[0](hidden_state))
        hidden_state = self.layer[1](hidden_state)
        hidden_state += residual
        return F.relu(hidden_state)


class After(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embedder = nn.Conv2d(3, width, 3, padding=1)
        self.encoder = nn.Sequential(Residual(width), Residual(width))
        self.classifier = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

    def forward(self, pixel_values):
        return self.classifier(self.encoder(self.embedder(pixel_values)))


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
