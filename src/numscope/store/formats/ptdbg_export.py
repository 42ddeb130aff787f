"""Writes a run as ptdbg_ascend's files: JSON lines, and a folder of .npy beside them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TextIO

import numpy as np

from numscope.core.names import parse_call
from numscope.store.formats.npy_export import widened
from numscope.store.formats.step_calls import StepCall, step_calls
from numscope.store.reader import Run


def export(run: Run, destination: Path) -> int:
    """Write `rank{R}/step{N}.pkl`, JSON lines, and a folder of .npy beside each; return the number of files."""
    stamp = time.strftime("%Y%m%d_%H%M%S")
    count = 0
    for rank in run.ranks:
        for step in run.written_steps(rank):
            folder = destination / f"rank{rank}"
            folder.mkdir(parents=True, exist_ok=True)
            calls = [call for call in step_calls(run, step, rank) if call.kind in ("api", "collective", "aten")]
            with (folder / f"step{step}.pkl").open("w", encoding="utf-8") as stream:
                data = folder / f"step{step}_{stamp}"
                for number, call in enumerate(calls):
                    count += _write_call(number, call, stream, data)
            count += 1
    return count


def _write_call(number: int, call: StepCall, stream: TextIO, data: Path) -> int:
    """Write the lines of a call and its data; return the number of .npy files."""
    parts = parse_call(call.name)
    if parts is None:
        return 0
    head = f"{number}_{parts.prefix}_{parts.op}_{call.phase}"
    if call.frames and call.phase == "forward":
        frames = [[f["file"], f["line"], f["function"], f["code"]] for f in reversed(call.frames)]
        stream.write(json.dumps([f"{head}_stack_info", frames]) + "\n")
    written = 0
    groups = {"input": "input", "kwargs": "input", "output": "output"}
    if call.phase == "backward":
        groups = {"input": "output", "output": "input"}
    for group in ("input", "output"):
        for slot, tensor in call.slots:
            first, _, tail = slot.partition(".")
            if tensor is None or groups.get(first) != group:
                continue
            high, low, mean, _ = tensor.statistics()
            name = f"{head}_{group}.{tail}"
            stream.write(
                json.dumps([name, 1, [], f"torch.{tensor.dtype}", list(tensor.shape), [high, low, mean]]) + "\n"
            )
            if tensor.load is not None:
                data.mkdir(exist_ok=True)
                np.save(data / f"{name}.npy", widened(tensor.load()))
                written += 1
    return written
