"""The speed of writing kept tensors: the writer's time over that of plain write() calls of as many bytes.

    PYTHONPATH=src python -m bench.keep [--gigabytes 2] [--megabytes 0.0625 1 16] [--rounds 3]

Distinct tensors of each size, handed over in batches as a capture does, from the opening of a run to its end; plain
writes of 16 MB and the writer in turn, in files that are deleted at once. Prints one line of JSON; to stderr goes the same
in words.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from numscope.capture.recording.recorder import FLUSH_BYTES
from numscope.store.writer import Batch, RunWriter

CHUNK = 1 << 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1 / 16, 1, 16, 96])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    total = int(args.gigabytes * 1e9)
    memory = np.random.default_rng(0).integers(0, 256, 1 << 29, np.uint8)
    folder = Path(tempfile.mkdtemp(prefix="numscope-keep-"))
    result: dict[str, dict[str, float]] = {}
    try:
        plain(folder / "disk", total)  # the first writes of a machine may be slower
        for size in args.megabytes:
            floors, taken = [], []
            for _ in range(args.rounds):
                floors.append(plain(folder / "disk", total))
                taken.append(kept(folder / "run", memory, total, int(size * (1 << 20))))
            floor, time_of = min(floors), min(taken)
            plainly, kept_so = total / floor / 1e9, total / time_of / 1e9
            what = f"{size:g} MB" if size >= 1 else f"{size * 1024:g} KB"
            result[what] = {"ratio": time_of / floor, "plain GB/s": plainly, "kept GB/s": kept_so}
            words = f"{what:>8}  {time_of / floor:5.2f} × the floor  ({plainly:.2f} GB/s plain, {kept_so:.2f} kept)"
            print(words, file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(json.dumps(result) + "\n")


def plain(path: Path, total: int) -> float:
    """Return the seconds that write() calls of 16 MB take for this many bytes."""
    chunk = os.urandom(CHUNK)
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(total // CHUNK):
            file.write(chunk)
    seconds = time.perf_counter() - begin
    path.unlink()
    return seconds


def kept(path: Path, memory: np.ndarray[tuple[int], np.dtype[np.uint8]], total: int, size: int) -> float:
    """Return the seconds from the opening of a run to its end, with distinct tensors of this size."""
    places = range(0, len(memory) - size + 1, size)
    count = max(1, total // size)
    per_batch = max(1, FLUSH_BYTES // size)
    begin = time.perf_counter()
    with RunWriter(path, rank=0, manifest={}) as writer:
        for first in range(0, count, per_batch):
            numbers = np.arange(first, min(first + per_batch, count), dtype=np.int32)
            arrays = {int(n): memory[places[n % len(places)] :][:size].view(np.float32) for n in numbers}
            writer.write(Batch(tensors=columns(numbers, size // 4), data=arrays))
        writer.end_step(0, {})
    seconds = time.perf_counter() - begin
    shutil.rmtree(path)
    return seconds


def columns(numbers: np.ndarray[tuple[int], np.dtype[np.int32]], elements: int) -> dict[str, object]:
    count = len(numbers)
    return {
        "step": np.zeros(count, np.int32),
        "tensor": numbers,
        "dtype": ["float32"] * count,
        "shape": [[elements]] * count,
        "device": ["cpu"] * count,
        "elements": np.full(count, elements),
        "hash": numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15),
        "sketch": np.zeros((count, 64)),
    }


if __name__ == "__main__":
    main()
