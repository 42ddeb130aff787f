"""The whole step on one GPU, captured over plain: one script without dependencies besides numscope's.

    PYTHONPATH=src python3 bench/gpu.py [--only small] [--guard] [--profile mix]

A bf16 GPT, forward, backward and fused AdamW; plain and captured blocks of steps in turn, the device synchronised at
the ends of a block only. Prints ratios as they come, and writes gpu.json to $OUT or bench/results. A measurement
that fails is reported and the others go on; what does not fit into the time (--minutes) is left out and said.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns

VOCABULARY = 32_000


@dataclass(frozen=True)
class Size:
    """A model, its batch, and the number of steps in a block."""

    layers: int
    width: int
    heads: int
    batch: int
    length: int
    steps: int


SIZES = {"large": Size(24, 2048, 16, 8, 1024, steps=4), "small": Size(12, 768, 12, 4, 512, steps=10)}
TINY = Size(2, 64, 4, 2, 32, steps=3)  # --only tiny: to try this script itself, on any device
# model, level, keep, the limit on captured / plain (None: reported only)
MEASURED: list[tuple[str, str, str, float | None]] = [
    ("large", "module", "stats", 1.06),
    ("large", "mix", "stats", 1.25),
    ("large", "aten", "stats", 1.5),
    ("small", "mix", "stats", 3.0),
    ("small", "module", "stats", None),
    ("small", "aten", "stats", None),
    ("small", "mix", "structure", None),
    ("small", "mix", "tensors", None),
]
# of a row, with its form
SHOWN = {"calls": "d", "slots": "d", "tensors": "d", "gigabytes": ".1f", "files": "d", "bytes per step": ".3g"}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.activation = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.activation(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass
class Training:
    """A model on the device and one step of its training."""

    size: Size
    device: str

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = GPT(self.size).to(self.device, torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(VOCABULARY, (self.size.batch, self.size.length), device=self.device)

    def step(self) -> None:
        logits = self.model(self.tokens)
        loss = F.cross_entropy(logits.view(-1, VOCABULARY).float(), self.tokens.view(-1))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def recorded(self, cap: Any) -> Callable[[], None]:
        """Return a step that tells the capture its end."""

        def step() -> None:
            self.step()
            cap.step()

        return step

    def block(self, step: Callable[[], None], steps: int) -> float:
        """Return the seconds per step, over a block that ends with the device idle."""
        self.synchronise()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        self.synchronise()
        return (time.perf_counter() - begin) / steps

    def synchronise(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def captured(training: Training, level: str, keep: str, run: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Time plain and captured blocks in turn, without the first captured block, which compiles kernels."""
    plain, with_capture, everything = [], [], []
    for turn in range(rounds + 1):
        plain.append(training.block(training.step, steps))
        shutil.rmtree(run, ignore_errors=True)
        cap: Any = ns.capture(run, training.model, level=level, keep=keep, on_error="raise")
        step = training.recorded(cap)
        begin = time.perf_counter()
        cap.start()
        try:
            step()  # call sites are interned and buffers allocated once in a job's life, not in every step
            one = training.block(step, steps)
        finally:
            cap.stop()
        if turn > 0:
            with_capture.append(one)
            everything.append((time.perf_counter() - begin) / (steps + 1))
    plain.append(training.block(training.step, steps))
    sizes = [path.stat().st_size for path in run.rglob("*") if path.is_file()]
    result: dict[str, Any] = {
        "plain": statistics.median(plain[1:]),
        "captured": statistics.median(with_capture),
        "captured, with start and stop": statistics.median(everything),
        "bytes per step": sum(sizes) / (steps + 1),
        "files": len(sizes),
        **contents(run),
    }
    # Each block over the plain ones around it: a host's speed may change by half within seconds.
    around = [(before + after) / 2 for before, after in itertools.pairwise(plain[1:])]
    result["ratio"] = statistics.median(one / other for one, other in zip(with_capture, around))
    shutil.rmtree(run, ignore_errors=True)
    return result


def contents(run: Path) -> dict[str, Any]:
    """Return the numbers of calls, slots and distinct tensors in a step of the run."""
    opened = ns.open_run(run)
    step = opened.steps[-1]
    tables = opened.step_tables(step, opened.ranks[0])
    return {
        "calls": tables.calls.num_rows,
        "slots": tables.slots.num_rows,
        "tensors": tables.tensors.num_rows,
        "gigabytes": gigabytes(tables.tensors),
        "skipped": opened.skipped(),
    }


def gigabytes(tensors: Any) -> float:
    """Return the size of the distinct contents of a step: each must be read once at least."""
    names, elements, hashes = (tensors.column(name).to_pylist() for name in ("dtype", "elements", "hash"))
    sizes = {
        (name, count, mark): count * getattr(torch, name).itemsize for name, count, mark in zip(names, elements, hashes)
    }
    return sum(sizes.values()) / 1e9


def idle(training: Training, run: Path, steps: int) -> dict[str, Any]:
    """Time a capture that records nothing, over the plain step: the median of five turns."""
    found: dict[str, list[float]] = {"not started": [], "stopped": [], "step not recorded": []}
    for _ in range(5):
        plain = training.block(training.step, steps)
        cap: Any = ns.capture(run, training.model, overwrite=True, on_error="raise")
        found["not started"].append(training.block(training.step, steps) / plain)
        cap.start()
        training.step()
        cap.stop()
        found["stopped"].append(training.block(training.step, steps) / training.block(training.step, steps))
        cap = ns.capture(run, training.model, steps=[10**6], overwrite=True, on_error="raise")
        step = training.recorded(cap)
        cap.start()
        step()
        time_of = training.block(step, steps)
        cap.stop()
        found["step not recorded"].append(time_of / training.block(training.step, steps))
    return {what: statistics.median(ratios) for what, ratios in found.items()}


def guarded(training: Training, level: str, steps: int) -> dict[str, Any]:
    """Time the step under the watch for NaN and infinity."""
    plain, watched = [], []
    for turn in range(4):
        plain.append(training.block(training.step, steps))
        with ns.guard(training.model, level=level, record=None):
            training.step()
            one = training.block(training.step, steps)
        if turn > 0:
            watched.append(one)
    result = {"plain": statistics.median(plain), "captured": statistics.median(watched)}
    return {**result, "ratio": result["captured"] / result["plain"]}


def limits_of(device: str, folder: Path) -> dict[str, float]:
    """Return the bytes per second of the link to the host and of the disk: the floor for kept tensors."""
    found = {}
    if device == "cuda":
        source = torch.empty(2**30, dtype=torch.uint8, device=device)
        pinned = torch.empty(2**30, dtype=torch.uint8, pin_memory=True)
        pinned.copy_(source)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(4):
            pinned.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        found["link"] = 4 * 2**30 / (time.perf_counter() - begin)
    chunk = os.urandom(2**24)
    begin = time.perf_counter()
    with open(folder / "disk", "wb", buffering=0) as file:
        for _ in range(128):
            file.write(chunk)
    found["disk"] = 128 * 2**24 / (time.perf_counter() - begin)
    (folder / "disk").unlink()
    return found


def profile(training: Training, level: str, run: Path) -> None:
    """Profile the host's time of captured steps."""
    import cProfile
    import pstats

    cap: Any = ns.capture(run, training.model, level=level, on_error="raise", overwrite=True)
    with cap:
        step = training.recorded(cap)
        for _ in range(3):
            step()
        profiler = cProfile.Profile()
        profiler.enable()
        for _ in range(5):
            step()
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def about(device: str) -> dict[str, Any]:
    import numpy
    import pyarrow

    with contextlib.suppress(ImportError):
        import triton
    return {
        "date": date.today().isoformat(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numscope": ns.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__ if "triton" in locals() else None,
        "numpy": numpy.__version__,
        "pyarrow": pyarrow.__version__,
    }


class Report:
    """Prints each row as it comes and keeps the file up to date, so that a cut-off run still leaves its results."""

    def __init__(self, device: str, deadline: float) -> None:
        self.rows: list[dict[str, Any]] = []
        self.head = {"format": "numscope.bench/1", "about": about(device)}
        self.deadline = deadline
        self.path = Path(os.environ.get("OUT") or Path(__file__).parent / "results") / "gpu.json"
        print(" ".join(f"{key}={value}" for key, value in self.head["about"].items()), flush=True)

    def add(self, what: str, work: Callable[[], dict[str, Any]], limit: float | None = None) -> None:
        row: dict[str, Any] = {"what": what, "limit": limit}
        if time.monotonic() > self.deadline:
            row["error"] = "left out: no time left"
        else:
            try:
                row.update(work())
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"
                traceback.print_exc()
        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({**self.head, "rows": self.rows}, indent=1, default=str) + "\n")
        print(self.line(row), flush=True)

    @staticmethod
    def line(row: dict[str, Any]) -> str:
        if "error" in row:
            return f"{row['what']:24} {row['error']}"
        if "ratio" not in row:
            shown = {k: f"{v:.3g}" for k, v in row.items() if isinstance(v, float) and k != "limit"}
            return f"{row['what']:24} " + ", ".join(f"{key} {value}" for key, value in shown.items())
        text = f"{row['what']:24} {row['ratio']:6.3f} x  (plain {row['plain'] * 1e3:.1f} ms"
        for part, form in SHOWN.items():
            if part in row:
                text += f", {row[part]:{form}} {part}"
        if "captured, with start and stop" in row:
            text += f", with start and stop {row['captured, with start and stop'] / row['plain']:.2f} x"
        if "over the floor" in row:
            text += f", all {row['over the floor']:.2f} x the time of its bytes over link and disk"
        if row["limit"] is None:
            return f"{text})"
        return f"{text})  limit {row['limit']}: {'kept' if row['ratio'] <= row['limit'] else 'MISSED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=[*SIZES, "tiny"], help="one model alone")
    parser.add_argument("--minutes", type=float, default=5.5)
    parser.add_argument("--profile", metavar="LEVEL", help="print where the host's time goes, and stop")
    parser.add_argument("--guard", action="store_true", help="the guard alone")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="numscope-gpu-"))
    try:
        if args.profile:
            profile(Training(SIZES.get(args.only or "small", TINY), args.device), args.profile, folder / "run")
        else:
            measure(args.device, args.only, args.guard, time.monotonic() + 60 * args.minutes, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(device: str, only: str | None, guard: bool, deadline: float, folder: Path) -> None:
    report = Report(device, deadline)
    report.add("bytes per second", partial(limits_of, device, folder))
    sizes = {"tiny": TINY} if only == "tiny" else SIZES
    for name, size in sizes.items():
        if only in (None, name):
            measure_model(report, name, Training(size, device), folder / "run", guard)
            if device == "cuda":
                torch.cuda.empty_cache()


def measure_model(report: Report, name: str, training: Training, run: Path, guard: bool) -> None:
    size = training.size
    training.block(training.step, 3)
    for model, level, keep, limit in [] if guard else MEASURED:
        if model != ("small" if name == "tiny" else name):
            continue
        rounds, steps = (1, 2) if keep == "tensors" else (3 if name == "large" else 7, size.steps)
        work = partial(captured, training, level, keep, run, rounds, steps)
        if keep == "tensors":
            work = partial(over_the_floor, work, report.rows[0])
        report.add(f"{name} {level} {keep}", work, limit if name == model else None)
    for level, limit in (("module", 1.05), ("mix", 1.2)):
        within = limit if name == "large" else None
        report.add(f"{name} guard {level}", partial(guarded, training, level, size.steps), within)
    if not guard and name != "large":
        report.add(f"{name} idle", partial(idle, training, run, size.steps))


def over_the_floor(work: Callable[[], dict[str, Any]], limits: dict[str, Any]) -> dict[str, Any]:
    """Return the least time for kept tensors: the slower of link and disk takes their bytes."""
    row = work()
    floor = row["bytes per step"] / min(limits[part] for part in ("link", "disk") if part in limits)
    return {**row, "floor": floor, "over the floor": row["captured, with start and stop"] / floor}


if __name__ == "__main__":
    main()
