"""A detector's boxes are decoded from the cells' corners instead of their centres."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (missing("Tensor.add", "head"), call("Torch.(stack|meshgrid)", "head")),
    ("semantic",),
    step=0,
    repair=(r"missing: Tensor\.add\.0\.forward \(0\.5\)",),
)


class Head(nn.Module):
    def __init__(self, variant, stride=4):
        super().__init__()
        self.variant, self.stride = variant, stride
        self.convs = nn.ModuleDict({"cls": nn.Conv2d(8, 3, 1), "reg": nn.Conv2d(8, 4, 1)})

    def centres(self, h, w):
        y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack([x, y], -1).float().view(-1, 2)  # origin
        if self.variant == "reference":
            grid = grid + 0.5  # missing
        return grid * self.stride

    def forward(self, features):
        classes = self.convs["cls"](features).flatten(2).transpose(1, 2)
        sides = self.convs["reg"](features).flatten(2).transpose(1, 2).exp() * self.stride
        centres = self.centres(*features.shape[-2:])
        boxes = torch.cat([centres - sides[..., :2], centres + sides[..., 2:]], -1)
        return {"logits": classes, "boxes": boxes}


class Detector(nn.Module):
    def __init__(self, variant):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.ReLU6())
        self.head = Head(variant)

    def forward(self, images):
        return self.head(self.backbone(images))


def overlap(a, b):
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    inter = (high - low).clamp(min=0).prod(-1)
    return inter / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - inter)


def main(variant):
    torch.manual_seed(0)
    model = Detector(variant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    truth = torch.tensor([2.0, 3.0, 11.0, 12.0])
    values = []
    for _ in range(2):
        out = model(torch.rand(2, 3, 16, 16))
        iou = overlap(out["boxes"], truth)
        target = F.one_hot(torch.zeros(iou.shape, dtype=torch.long), 3) * iou.detach()[..., None]
        loss = F.binary_cross_entropy_with_logits(out["logits"], target) + (1 - iou).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
