"""SIGKILL at random moments: each complete step is whole, and of the step under way the calls of more than a second ago are there.

`make crash` kills 200 jobs; here are a few. Jobs are forked from this process, so that each has torch loaded already.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import numscope as ns
from numscope.__main__ import main
from numscope.store.reader import Run

KILLS = int(os.environ.get("CRASH_KILLS", "10"))
# A machine that is busy with other tests lets the thread that hands over wait.
OLDER = float(os.environ.get("CRASH_OLDER", "3"))
LONGEST = 4.0
TOGETHER = 5


class Perceptron(nn.Module):
    """Steps of a few milliseconds."""

    LAYER, PAUSE, MICRO_BATCHES = "layers.0", 0.02, 1

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layers(x))


class Encoder(nn.Module):
    """Steps that last longer than the job lives: many micro-batches, and pauses in which nothing is called."""

    LAYER, PAUSE, MICRO_BATCHES = "layer.linear1", 0.2, 1000

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layer(x.unsqueeze(0)))


MODELS: tuple[type[Perceptron] | type[Encoder], ...] = (Perceptron, Encoder)


@dataclass(frozen=True)
class Kill:
    """A job and when it is to die."""

    model: type[Perceptron] | type[Encoder]
    keep: str
    after: float  # its first call
    stuck: bool  # it waits for something for ever, in the middle of its last step


def kills() -> list[Kill]:
    chance = random.Random(22)
    return [
        Kill(MODELS[n % 2], ("stats", "tensors")[n // 2 % 2], chance.uniform(0.3, LONGEST), chance.random() < 0.3)
        for n in range(KILLS)
    ]


def job(kill: Kill, path: Path, steps: int | None = None) -> None:
    """Train, and write the moment after each forward call into a log."""
    torch.manual_seed(0)
    model = kill.model()
    optimizer = torch.optim.AdamW(model.parameters())
    end = time.monotonic() + max(kill.after - 2, 0.2) if kill.stuck else float("inf")
    with open(f"{path}.log", "w", buffering=1) as log, ns.capture(path, model, keep=kill.keep) as cap:
        for step in range(steps or 10**9):
            for batch in range(kill.model.MICRO_BATCHES):
                x = torch.randn(4, 16, generator=torch.Generator().manual_seed(step * 1000 + batch))
                loss = model(x).square().mean()
                log.write(f"{step} {batch} {time.time()}\n")
                loss.backward()
                time.sleep(kill.model.PAUSE)
                if time.monotonic() > end:
                    signal.pause()
            optimizer.step()
            optimizer.zero_grad()
            cap.step()


def forked(kill: Kill, path: Path) -> int:
    process = os.fork()
    if process == 0:
        torch.set_num_threads(1)  # the others were not forked
        try:
            job(kill, path)
        finally:
            os._exit(0)
    return process


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < deadline, "the job does not begin"
        time.sleep(0.01)


def content(run: Run, step: int) -> list[tuple[str, str, int | None]]:
    """Return (call, slot, hash) of all slots of a step."""
    tables = run.step_tables(step, 0)
    names = dict(zip(tables.calls["order"].to_pylist(), tables.calls["name"].to_pylist()))
    hashes = dict(zip(tables.tensors["tensor"].to_pylist(), tables.tensors["hash"].to_pylist()))
    slots = (tables.slots[column].to_pylist() for column in ("call", "slot", "tensor"))
    return sorted((names[call], slot, hashes.get(tensor)) for call, slot, tensor in zip(*slots))


def kept_are_whole(run: Run, step: int) -> None:
    tensors = run.step_tables(step, 0).tensors
    for row in tensors.select(["shard", "key", "dtype", "shape", "l2"]).to_pylist():
        array = run.array(0, row["shard"], row["key"], row["dtype"], tuple(row["shape"]))
        assert np.isclose(np.linalg.norm(array.astype(np.float64)), row["l2"], rtol=1e-6)


def check(kill: Kill, path: Path, killed: float, whole: Run) -> None:
    """Hold what the job has left against what it logged, and against a run that ended well."""
    run = ns.open_run(path)
    assert run.ends() == {0: ""}
    assert run.steps == list(range(len(run.steps)))
    for step in {*run.steps[:1], *run.steps[-2:]} & {*whole.steps}:  # of an Encoder, none is ever complete
        assert content(run, step) == content(whole, step), step
    recorded: dict[int, int] = {}
    for step, name in zip(run.calls["step"].to_pylist(), run.calls["name"].to_pylist()):
        recorded[step] = recorded.get(step, 0) + name.startswith(f"Module.{kill.model.LAYER}.Linear.forward")
    for line in Path(f"{path}.log").read_text().splitlines():
        step, batch, at = line.split()
        if float(at) < killed - OLDER:
            assert recorded.get(int(step), 0) > int(batch), (kill, step, batch, killed - float(at))
    assert run.tensors["name"].null_count == 0
    if kill.keep == "tensors":
        for step in run.written_steps(0)[-2:]:
            kept_are_whole(run, step)


def test_a_killed_job_leaves_all_but_its_last_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "whole"
    job(Kill(Perceptron, "stats", 0, False), whole, steps=100)  # here, so that all modules are loaded before the forks
    waiting = list(enumerate(kills()))
    chance = random.Random(7)
    while waiting:
        together, waiting = waiting[:TOGETHER], waiting[TOGETHER:]
        running = []
        for n, kill in together:
            path = tmp_path / f"run{n}"
            running.append((kill, path, forked(kill, path)))
        for _, path, _ in running:
            wait_for(Path(f"{path}.log"))
        began = time.monotonic()
        for kill, path, process in sorted(running, key=lambda one: one[0].after):
            time.sleep(max(0.0, began + kill.after - time.monotonic()))
            killed = time.time()
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            if path.exists():  # else the job died within its first second
                check(kill, path, killed, ns.open_run(whole))
                if chance.random() < 0.4:
                    assert main(["show", str(path)]) == 0
                    assert main(["check", str(path)]) in (0, 2)
                    assert main(["compare", str(path), str(path)]) in (0, 2)
            else:
                assert kill.after < OLDER
    capsys.readouterr()
