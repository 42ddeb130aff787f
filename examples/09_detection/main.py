"""A detector in a training loop: after a port its boxes are decoded from the corners of the cells, not from their centres.

The loss goes down all the same, a little slower, and the first steps look alike: who reads logs finds nothing.
"""

import torch
from torch import nn

import numscope as ns


class Detector(nn.Module):
    def __init__(self, centre: float) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.LeakyReLU(0.1))
        self.sides, self.centre = nn.Conv2d(8, 4, 1), centre

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.backbone(images)
        sides = self.sides(features).flatten(2).transpose(1, 2).exp() * 4
        y, x = torch.meshgrid(*(torch.arange(size) for size in features.shape[-2:]), indexing="ij")
        centres = (torch.stack([x, y], -1).view(-1, 2) + self.centre) * 4
        return torch.cat([centres - sides[..., :2], centres + sides[..., 2:]], -1)


def overlap(boxes: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    low, high = torch.maximum(boxes[..., :2], truth[:2]), torch.minimum(boxes[..., 2:], truth[2:])
    common = (high - low).clamp(min=0).prod(-1)
    return common / ((boxes[..., 2:] - boxes[..., :2]).prod(-1) + (truth[2:] - truth[:2]).prod() - common)


def run(path: str, centre: float) -> None:
    torch.manual_seed(0)
    model = Detector(centre)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with ns.capture(path, model, keep="tensors", overwrite=True) as capture:
        for _ in range(3):
            loss = 1 - overlap(model(torch.rand(2, 3, 16, 16)), torch.tensor([2.0, 3.0, 11.0, 12.0])).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            capture.step()


run("runs/reference", centre=0.5)
run("runs/target", centre=0.0)
report = ns.diagnose("runs/target", "runs/reference")
print(report.origin.reason)
for link in report.origin.chain:
    print("  because of", link)
print("repair:", report.origin.repair)
