"""A convolutional network with skips under bf16 autocast against float32, with a scaler's steps."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


def stage(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.SiLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = stage(2, 8)
        self.inner = stage(8, 16)
        self.leave = stage(24, 8)
        self.final = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        a = self.enter(x)
        b = self.inner(F.max_pool2d(a, 2))
        b = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return self.final(self.leave(torch.cat([a, b], 1)))


def main(variant):
    torch.manual_seed(0)
    net = UNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    values = []
    for _ in range(3):
        x = torch.randn(2, 2, 8, 8)
        with torch.autocast("cpu", torch.bfloat16, enabled=variant == "target"):
            loss = F.mse_loss(net(x).float(), x.flip(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
