"""The names that ptdbg_ascend gives to calls, to their tensors and to its files; torch_npu.hooks uses the same."""

from __future__ import annotations

import time
from pathlib import Path

from numscope.compat.live import LiveCall, LiveTensor
from numscope.core.names import parse_call


def head_of(call: LiveCall) -> str | None:
    """Return `Torch_norm_forward` for a call that this system would have hooked, or None."""
    parts = parse_call(call.name)
    if parts is None or call.kind not in ("api", "collective") or call.recompute:
        return None
    is_factory = parts.op.endswith("_like") or not (call.group("input") or call.group("kwargs"))
    if call.phase == "forward" and is_factory:
        return None  # a factory, whose result depends on no other tensor's values: random numbers, constants
    return f"{parts.prefix}_{parts.op}_{call.phase}"


def role_names(call: LiveCall) -> list[tuple[str, LiveTensor]]:
    """Return the tensors of a call, each with its role: the end of its name.

    In backward, `input` is torch's grad_input, the gradient that goes out, and `output` the one that comes in.
    """
    input_group, output_group = ("output", "input") if call.phase == "backward" else ("input", "output")
    found = [(f"input.{tail}", tensor) for tail, tensor in call.group(input_group).items()]
    if call.phase == "forward":
        found += [(f"input.{tail}", tensor) for tail, tensor in call.group("kwargs").items()]
    outputs = call.group(output_group)
    single = call.phase == "forward" and list(outputs) == ["0"]
    return found + [("output" if single else f"output.{tail}", tensor) for tail, tensor in outputs.items()]


def unused(folder: Path, name: str, form: str) -> Path:
    """Return `folder / name` with the time in place of {}, moved on by seconds until no such file exists."""
    now = time.time()
    while (path := folder / name.format(time.strftime(form, time.localtime(now)))).exists():
        now += 1
    return path


def overflow_stem() -> str:
    """Return the name of an overflow's files, without suffix: `Overflow_info_` and the time to the microsecond."""
    return f"Overflow_info_{time.strftime('%Y%m%d%H%M%S')}{time.time_ns() // 1000 % 1_000_000:06d}"
