"""Compile Triton's kernels for GPUs that are not here; prints how many did. A program of its own, as `interpreted` is."""

from __future__ import annotations

import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from numscope.fingerprint import triton_elements, triton_kernels
from numscope.fingerprint.triton_shapes import TUNING

_POINTERS = {"chunks": "*i32", "scratch": "*fp64", "values": "*fp32"}
_POINTERS |= dict.fromkeys(("jobs", "rows", "facts", "ring", "table", "factors", "blocks", "spans", "out"), "*i64")


def compiled(kernel: Any, architecture: int, data: str = "*i32", **constants: int) -> str:
    """Return the kernel as PTX."""
    names = kernel.arg_names
    types = {name: {"data": data, **_POINTERS}.get(name, "i64") for name in names}
    types |= dict.fromkeys(constants, "constexpr")
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if types[name].startswith("*")}
    known = {(names.index(name),): value for name, value in constants.items()}
    target = GPUTarget("cuda", architecture, 32)
    tuning = TUNING[constants.get("PER", 0)]
    options = {"num_warps": tuning.warps, "maxnreg": tuning.registers} if constants else {"num_warps": 4}
    return triton.compile(ASTSource(kernel, types, known, aligned), target=target, options=options).asm["ptx"]


def main() -> None:
    many = TUNING[1].many
    half = {"KIND": triton_elements.BFLOAT16, "SIZE": 2, "PER": 2, "MANY": many}
    whole = {"KIND": triton_elements.FLOAT32, "SIZE": 4, "PER": 1, "MANY": many}
    fast = [
        compiled(triton_kernels.measure, 90, DIMS=1, **whole),
        compiled(triton_kernels.measure, 80, DIMS=1, **half),
        compiled(triton_kernels.measure, 90, DIMS=5, **half),
        compiled(triton_kernels.measure_many, 90, **half),
    ]
    for ptx in fast:
        assert len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)) >= many, "the fast loop's loads are not of 16 bytes"
    slow = {"KIND": triton_elements.INT64, "SIZE": 8, "PER": 0, "DIMS": 3, "MANY": many}
    rest = [compiled(triton_kernels.measure, 90, data="*i64", **slow), compiled(triton_kernels.reduce, 90)]
    print(f"{len(fast + rest)} compile")


if __name__ == "__main__":
    main()
