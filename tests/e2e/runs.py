"""Two real runs of a small transformer, one with a wrong GELU; and one run whose logits overflow."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns

WIDTH = 32


class Attention(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = F.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, dim=-1)
        return self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class Block(nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.ln1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.ln2, self.mlp = nn.LayerNorm(WIDTH), Mlp(approximate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Model(nn.Module):
    def __init__(self, wrong: bool, extra: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block("tanh" if wrong and i == 1 else "none") for i in range(3))
        self.head = nn.Linear(WIDTH, 64)
        self.extra = extra

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        if self.extra:
            x = torch.clamp(x, -1e4, 1e4)  # a call that the reference does not have
        return self.head(x)


def train(path: Path, *, wrong: bool, keep: str = "tensors", steps: int = 2, explode: bool = False) -> None:
    """Capture a short training into a run."""
    for _ in training(path, wrong=wrong, keep=keep, steps=steps, explode=explode):
        pass


def training(
    path: Path, *, wrong: bool = False, keep: str = "stats", steps: int = 2, explode: bool = False
) -> Generator[int, None, None]:
    """Capture a training, a step for each item that is asked for."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(wrong, extra=wrong)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with ns.capture(str(path), model, keep=keep) as capture:
        for step in range(steps):
            ids = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(step))
            logits = model(ids)
            if explode and step == 1:
                logits = torch.exp(logits * 1000)
            loss = F.cross_entropy(logits.view(-1, 64), ids.view(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            capture.step()
            yield step
