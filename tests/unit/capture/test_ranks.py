"""Which rank a process takes itself for."""

from __future__ import annotations

import multiprocessing
import os
from types import SimpleNamespace
from typing import Any

import pytest

from numscope.capture import ranks


def _spawned(*_: Any) -> None: ...


def _pooled(*_: Any) -> None: ...


def _own(*_: Any) -> None: ...


_spawned.__module__ = "torch.multiprocessing.spawn"
_pooled.__module__ = "multiprocessing.pool"


@pytest.mark.parametrize(
    ("target", "arguments", "identity", "job", "rank"),
    [
        (_spawned, (_own, 2, (), "errors"), (7,), False, 2),
        (_own, (), (3,), True, 2),
        (_own, (), (3,), False, 0),  # perhaps the third of several jobs, one after the other
        (_own, (), (3, 1), True, 0),
        (_pooled, (), (3,), True, 0),
        (None, (), (), True, 0),
    ],
)
def test_a_worker_is_a_rank(
    target: Any, arguments: Any, identity: Any, job: bool, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = SimpleNamespace(_target=target, _args=arguments, _identity=identity)
    monkeypatch.setattr(multiprocessing.process, "current_process", lambda: process)
    monkeypatch.setenv("NUMSCOPE_PID", str(os.getppid()))
    monkeypatch.delenv("RANK", raising=False)
    if job:
        monkeypatch.setenv("NUMSCOPE_RUN", "{}")
    else:
        monkeypatch.delenv("NUMSCOPE_RUN", raising=False)
    assert ranks.current() == (rank, rank + 1)
