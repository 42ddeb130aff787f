"""The whole way of a kept tensor that stays on its device until it is written, with a device that this machine has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

import numscope as ns
from numscope.capture.torch import device_to_host as host
from numscope.capture.torch.device_to_host import DeviceCopy, Move
from numscope.capture.torch.identity import tensors
from numscope.fingerprint.definition import fingerprint


class Late:
    """Copies when its end is waited for, as late as a device may."""

    moved: list[tuple[str, int]]

    def __init__(self, device: torch.device) -> None:
        pass

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def begin(self, moves: Iterable[Move]) -> Callable[[], None]:
        held = list(moves)

        def wait() -> None:
            for target, source, _ in held:
                target.copy_(source)
                self.moved.append((threading.current_thread().name, len(source)))

        return wait


def test_every_tensor_reads_back_and_a_content_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Late.moved = []
    monkeypatch.setattr(host, "_Cuda", Late)
    monkeypatch.setattr(host, "PIECE", 1000)
    monkeypatch.setattr(tensors, "fetched_later", lambda copy: DeviceCopy(copy, None))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(8, 16)
    with ns.capture(tmp_path / "run", model, level="mix", keep="tensors", on_error="raise") as cap:
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            cap.step()
    run = ns.open_run(tmp_path / "run")
    places = set()
    for step in run.steps:
        for row in run.step_tables(step, 0).tensors.to_pylist():
            array = run.array(0, row["shard"], row["key"], row["dtype"], tuple(row["shape"]))
            assert int(fingerprint(array).hash[0]) == row["hash"]
            places.add((row["shard"], row["key"].partition("[")[0], array.nbytes if "[" not in row["key"] else 0))
    stored = sum(size for _, _, size in places)
    assert sum(size for _, size in Late.moved) == stored
    assert {name for name, _ in Late.moved} == {"numscope-shards-0"}  # none in the job's own thread
