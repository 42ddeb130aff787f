"""Vision models: a ResNet with BatchNorm, a ViT and a U-Net."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two convolutions with BatchNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, two blocks, a classifier."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.layer1 = BasicBlock(8, 8)
        self.layer2 = BasicBlock(8, 16, stride=2)
        self.fc = nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(images)))
        x = self.layer2(self.layer1(x))
        return self.fc(x.mean((2, 3)))


class Act(nn.Module):
    """GELU as a module of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class ViTBlock(nn.Module):
    """Pre-norm attention and feed-forward over the patches."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln2 = nn.LayerNorm(dim, eps=1e-6)
        self.up = nn.Linear(dim, 2 * dim)
        self.act = Act()
        self.down = nn.Linear(2 * dim, dim)
        self.heads = heads

    def attention(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.down(self.act(self.up(self.ln2(x))))


class ViT(nn.Module):
    """Patches of 4 x 4, a class token, two blocks."""

    def __init__(self, size: int = 16, dim: int = 32, heads: int = 4, layers: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.patch = nn.Linear(3 * 16, dim)
        self.token = nn.Parameter(torch.randn(1, 1, dim))
        self.position = nn.Parameter(0.1 * torch.randn(1, 1 + (size // 4) ** 2, dim))
        self.blocks = nn.ModuleList(ViTBlock(dim, heads) for _ in range(layers))
        self.ln = nn.LayerNorm(dim, eps=1e-6)
        self.fc = nn.Linear(dim, classes)

    def patches(self, images: Tensor) -> Tensor:
        batch, channels, height, width = images.shape
        x = images.view(batch, channels, height // 4, 4, width // 4, 4)
        return x.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * 16)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(self.patches(images))
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.fc(self.ln(x)[:, 0])


class UNet(nn.Module):
    """One level down, one up, with a skip connection."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)
        self.down = nn.Conv2d(channels, 2 * channels, 3, 2, 1)
        self.middle = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.fuse = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.leave = nn.Conv2d(channels, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        skip = F.silu(self.norm(self.enter(images)))
        x = F.silu(self.middle(F.silu(self.down(skip))))
        x = self.join(self.upsample(x), skip)
        return self.leave(F.silu(self.fuse(x)))

    def upsample(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)

    def join(self, x: Tensor, skip: Tensor) -> Tensor:
        return torch.cat([x, skip], dim=1)
