"""Jobs in which something stops being a number, for the tests of the guard and of `numscope check`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns

Struck = Callable[..., dict[str, Any]]  # the fixture of that name


class Block(nn.Module):
    """A module whose forward is one function."""

    def __init__(self, work: Callable[..., torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.work = work

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.work(self, *inputs)


def buckets(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Distances as some attention layers count them: the logarithm of a distance 0 is never used."""
    place = torch.arange(6)
    distance = (place[:, None] - place[None, :]).abs()
    far = 2 + (torch.log(distance.float() / 2) / math.log(4) * 2).to(torch.long)
    bucket = torch.where(distance < 2, distance, torch.min(far, torch.full_like(far, 3)))
    return self.parts[0](x) + F.embedding(bucket, self.parts[1].weight).sum()


def marked(function: Callable[..., Any], mark: str = "# origin") -> int:
    """Return the number of the line that carries a mark in a function's source."""
    lines, first = inspect.getsourcelines(function)
    return next(first + index for index, line in enumerate(lines) if mark in line)


def captured(path: Path, model: nn.Module, job: Callable[[], Any], steps: int = 1, **settings: Any) -> Path:
    """Capture a job, step by step, and return where."""
    with ns.capture(path, model, on_error="raise", **settings) as cap:
        for _ in range(steps):
            job()
            cap.step()
    return path
