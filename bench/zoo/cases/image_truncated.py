"""Augmented images go back to bytes by cutting off, not by rounding."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (missing("Tensor.(round|clamp)"), call("Tensor.(to|byte)")),
    ("semantic", "input"),
    step=0,
    repair=(r"missing: Tensor\.round",),
)


class Images(Dataset):
    def __init__(self, variant):
        self.variant = variant
        self.images = torch.randint(256, (8, 3, 8, 8), dtype=torch.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index].float()[None]
        image = F.interpolate(image, size=(6, 6), mode="bilinear", antialias=True)[0]
        if self.variant == "reference":
            image = image.round()  # missing
        image = image.to(torch.uint8)  # origin
        return image.float() / 127.5 - 1, index % 4


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    values = []
    for x, y in DataLoader(Images(variant), batch_size=4):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
