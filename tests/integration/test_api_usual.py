"""Levels api and mix: calls that are written down at once are recorded as all others are.

While another function mode is on, no call is written down at once: the same job, with one that does nothing, must leave
the same tables.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import numscope as ns
from numscope.capture.torch.levels import api


class Nothing(TorchFunctionMode):
    """Lets everything through."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def tables(path: Path) -> list[dict[Any, list[str]]]:
    run = ns.open_run(path)
    found = [run.step_tables(step, 0) for step in run.steps]
    parts = [{part: getattr(table, part).to_pydict() for part in ("calls", "slots", "tensors")} for table in found]
    return [  # as text: a NaN is no other NaN's equal
        {(part, name): list(map(str, values)) for part in step for name, values in step[part].items()} for step in parts
    ]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.sum()

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first * 2 + second


class Net(nn.Module):
    """Has calls of all kinds: views, several results, named arguments, lists, in-place writes, errors, a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = checkpoint(self.block, x, use_reentrant=False)
        values, places = torch.topk(x, 2, dim=-1)
        gathered = x.gather(-1, places).mul(values).sum(dim=-1, keepdim=True)
        parts = torch.cat([x, x * gathered], 1).chunk(2, dim=1)
        y = F.relu(self.norm(parts[1].flatten(0, 1)), inplace=True).view_as(x)
        doubled, total = Double.apply(y)
        with torch.no_grad():
            scale = torch.full((1,), 0.5).add_(0.25)
            torch.mul(scale, 2.0, out=scale)
        with suppress(RuntimeError):
            torch.mm(doubled, doubled)
        return torch.add(self.head(doubled * scale), other=total, alpha=1e-3).contiguous()


def train(path: Path, mode: Any, level: str, keep: str, around: Callable[[], Any]) -> list[dict[Any, list[str]]]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(20, (3, 5))
    with mode, ns.capture(path, model, level=level, keep=keep, stacks=False, on_error="raise") as capture:
        for _ in range(2):
            with around():
                loss = F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
            if loss.requires_grad:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            capture.step()
    return tables(path)


@pytest.mark.parametrize("level", ["api", "mix"])
@pytest.mark.parametrize("keep", ["stats", "structure"])
@pytest.mark.parametrize("around", [nullcontext, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_a_job_is_recorded_alike_with_another_mode_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, keep: str, around: Callable[[], Any]
) -> None:
    train(tmp_path / "first", nullcontext(), level, keep, around)  # what torch does once in a process
    begun: list[str] = []
    begin = api._begin
    monkeypatch.setattr(api, "_begin", lambda *args: (begun.append(args[2].head), begin(*args))[1])
    at_once = train(tmp_path / "once", nullcontext(), level, keep, around)
    few = len(begun)
    begun.clear()
    other = train(tmp_path / "other", Nothing(), level, keep, around)
    assert few < 0.7 * len(begun)  # what is recomputed is not written down at once, and no function's first call
    assert at_once == other


UNARY = [torch.sin, torch.neg, torch.Tensor.t, torch.Tensor.contiguous, torch.abs, torch.clone, torch.Tensor.flatten]
BINARY = [torch.add, torch.mul, torch.Tensor.__sub__, torch.maximum, torch.mm, torch.Tensor.add_, torch.Tensor.copy_]


def program(seed: int) -> None:
    chosen = random.Random(seed)
    values = [torch.arange(9.0).view(3, 3), torch.eye(3).requires_grad_()]
    for _ in range(25):
        with suppress(RuntimeError, TypeError), torch.no_grad() if chosen.random() < 0.3 else nullcontext():
            if chosen.random() < 0.5:
                values.append(chosen.choice(UNARY)(chosen.choice(values)))
            else:
                values.append(chosen.choice(BINARY)(chosen.choice(values), chosen.choice([*values, 2.0])))
    with suppress(RuntimeError):
        sum(value.sum() for value in values if value.requires_grad).backward()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_are_recorded_alike_with_another_mode_on(tmp_path: Path, seed: int) -> None:
    found = []
    for name, mode in (("once", nullcontext()), ("other", Nothing())):
        with mode, ns.capture(tmp_path / name, None, level="api", stacks=False, on_error="raise") as capture:
            for step in range(2):
                program(seed * 2 + step)
                capture.step()
        found.append(tables(tmp_path / name))
    assert found[0] == found[1]
