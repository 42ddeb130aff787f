"""seed_all makes two runs draw the same numbers."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import numscope as ns


@pytest.fixture(autouse=True)
def restore(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    flags = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(False)  # another test may have left it on
    for name in ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags
    for name in ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"):
        os.environ.pop(name, None)


def draws() -> tuple[object, ...]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_the_same_seed_gives_the_same_numbers_in_every_generator() -> None:
    ns.seed_all(7, deterministic=False)
    first = draws()
    ns.seed_all(7, deterministic=False)
    assert draws() == first
    ns.seed_all(8, deterministic=False)
    assert all(a != b for a, b in zip(draws(), first))
    assert not torch.are_deterministic_algorithms_enabled()


def test_deterministic_sets_what_the_frameworks_need() -> None:
    ns.seed_all(1234, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
