"""The guard on a GPU: the same origins, found in flags that are read late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns
from numscope.capture.torch.guard.flags import DeviceFlags, count

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_the_kernel_counts_as_torch_does(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    flags = DeviceFlags(DEVICE)
    tensors = []
    for size in (1, 7, 8192, 8193, 100_003):
        values = torch.randn(size, 3, device=DEVICE).to(dtype)
        values[torch.rand(size, 3, device=DEVICE) < 0.01] = float("nan")
        values[torch.rand(size, 3, device=DEVICE) < 0.01] = float("inf")
        values[torch.rand(size, 3, device=DEVICE) < 0.01] = float("-inf")
        tensors += [values, values.T, values[::2], values[:, 1], torch.zeros_like(values), values[:0]]
    rows = [flags.add(tensor) for tensor in tensors]
    pending = flags.take()
    assert pending.struck()
    for row, tensor in zip(rows, tensors):
        found, expected = pending.counts(row), count(tensor)
        assert (found.nan, found.posinf, found.neginf) == (expected.nan, expected.posinf, expected.neginf)


def test_the_smallest_numbers_are_noticed() -> None:
    flags = DeviceFlags(DEVICE)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        low = flags.add(torch.full((4,), torch.finfo(dtype).min, dtype=dtype, device=DEVICE))
        high = flags.add(torch.full((4,), torch.finfo(dtype).max / 4, dtype=dtype, device=DEVICE))
        pending = flags.take()
        assert pending.counts(low).low
        assert not pending.counts(high).low


class Block(nn.Module):
    def __init__(self, work: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.work = work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.work(self, x)


def masked(self: Any, x: torch.Tensor) -> torch.Tensor:
    allowed = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).tril()
    scores = self.inner(x) @ x.T
    x = scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ x
    smallest = torch.zeros_like(scores).masked_fill(~allowed, torch.finfo(x.dtype).min)
    return x + (scores + smallest + smallest).softmax(-1) @ x


CASES: list[tuple[Callable[..., torch.Tensor], str]] = [
    (lambda self, x: torch.log(self.inner(x) * 0), "Torch.log.0.forward"),
    (lambda self, x: torch.sqrt(self.inner(x) * 0), "Torch.sqrt.0.backward"),
    (lambda self, x: F.relu(self.inner(x).half() * 1e4 * 1e4).float(), "Tensor.mul.1.forward"),
    (lambda self, x: self.inner(x).div_(0), "Tensor.div_.0.forward"),
]


@pytest.mark.parametrize(("work", "call"), CASES)
@pytest.mark.parametrize("latency", [None, 0, 3])
def test_the_origin_is_exact_whenever_the_flags_are_read(work: Any, call: str, latency: int | None) -> None:
    torch.manual_seed(0)
    model = Block(work).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def job() -> None:
        for _ in range(3):
            model(torch.randn(8, 16, device=DEVICE)).sum().backward()
            optimizer.step()

    with pytest.raises(ns.NonFiniteError) as caught, ns.guard(model, record=None, latency=latency):
        job()
    assert (caught.value.origin["call"], caught.value.origin["step"]) == (call, 0)
    assert caught.value.origin["source"]["line"] == work.__code__.co_firstlineno


@pytest.mark.parametrize("level", ["mix", "module"])
def test_masks_are_silent(level: str) -> None:
    model = Block(masked).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with ns.guard(model, record=None, level=level) as guard:
        for _ in range(3):
            model(torch.randn(8, 16, device=DEVICE)).sum().backward()
            optimizer.step()
    assert guard.origins == []
