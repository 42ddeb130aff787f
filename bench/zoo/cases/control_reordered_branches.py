"""The same two-tower model with its independent parts computed in another order."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Towers(nn.Module):
    def __init__(self, swapped):
        super().__init__()
        self.swapped = swapped
        self.user = nn.Sequential(nn.EmbeddingBag(20, 8, mode="sum"), nn.ReLU(), nn.Linear(8, 8))
        self.item = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, clicks, features):
        if self.swapped:
            right = F.normalize(self.item(features), dim=-1)
            left = F.normalize(self.user(clicks), dim=-1)
            penalty = right.square().mean() + left.square().mean()
            return self.scale.exp() * torch.mm(right, left.t()).t(), penalty
        left = F.normalize(self.user(clicks), dim=-1)
        right = F.normalize(self.item(features), dim=-1)
        logits = torch.mm(left, right.t()) * self.scale.exp()
        return logits, left.square().mean() + right.square().mean()


def main(variant):
    torch.manual_seed(0)
    model = Towers(variant == "target")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    values = []
    for _ in range(2):
        clicks, features = torch.randint(20, (6, 4)), torch.randn(6, 5)
        logits, penalty = model(clicks, features)
        labels = torch.arange(6)
        sides = [F.cross_entropy(logits, labels), F.cross_entropy(logits.t(), labels)]
        if variant == "target":
            sides.reverse()
        loss = (sides[0] + sides[1]) / 2 + 0.1 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
