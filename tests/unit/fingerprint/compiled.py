"""Compile Triton's kernels for GPUs that are not here; prints how many did. A program of its own, as `interpreted` is."""

from __future__ import annotations

import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from numscope.fingerprint.cuda import elements as triton_elements
from numscope.fingerprint.cuda import kernels as triton_kernels
from numscope.fingerprint.cuda.fast_loop import AHEAD
from numscope.fingerprint.cuda.shapes import TUNING

_POINTERS = {"chunks": "*i32", "values": "*fp32"}
_POINTERS |= dict.fromkeys(("jobs", "rows", "facts", "ring", "table", "factors", "blocks", "spans", "out"), "*i64")


def compiled(kernel: Any, architecture: int, data: str = "*i32", **constants: int) -> dict[str, str]:
    """Return the kernel at the stages of its compilation."""
    names = kernel.arg_names
    types = {name: {"data": data, **_POINTERS}.get(name, "i64") for name in names}
    types |= dict.fromkeys(constants, "constexpr")
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if types[name].startswith("*")}
    known = {(names.index(name),): value for name, value in constants.items()}
    target = GPUTarget("cuda", architecture, 32)
    tuning = TUNING[constants.get("PER", 0)]
    options = {"num_warps": tuning.warps, "maxnreg": tuning.registers} if constants else {"num_warps": 16}
    return triton.compile(ASTSource(kernel, types, known, aligned), target=target, options=options).asm


def main() -> None:
    half = {"KIND": triton_elements.BFLOAT16, "SIZE": 2, "PER": 2}
    float16 = {"KIND": triton_elements.FLOAT16, "SIZE": 2, "PER": 2}
    whole = {"KIND": triton_elements.FLOAT32, "SIZE": 4, "PER": 1, "PACKED": 0}
    quarter = {"KIND": triton_elements.FLOAT8_E4M3FN, "SIZE": 1, "PER": 4}
    early = [
        compiled(triton_kernels.measure, 90, DIMS=1, EARLY=1, **whole),
        compiled(triton_kernels.measure, 90, DIMS=5, EARLY=1, PACKED=1, **half),
        compiled(triton_kernels.measure, 90, DIMS=1, EARLY=1, PACKED=1, **float16),
    ]
    fast = [
        *early,
        compiled(triton_kernels.measure, 80, DIMS=1, EARLY=0, PACKED=0, **half),
        compiled(triton_kernels.measure_many, 90, PACKED=1, **half),
        compiled(triton_kernels.measure, 90, DIMS=1, EARLY=1, PACKED=0, **quarter),
    ]
    for stages in early:
        begins, waits = stages["ptx"].index("ld.global.v4"), stages["ptx"].index("griddepcontrol.wait")
        assert waits < min(begins, stages["ptx"].index("st.global")), "the kernel before may still be writing"
    for stages in fast:
        wide = re.findall(r"ld\.global\S*\.v4\.b32", stages["ptx"])
        assert len(wide) >= AHEAD, "the fast loop's loads are not of 16 bytes"
        for layout in set(re.findall(r"tt\.load .*tensor<256x4x!tt\.ptr<i32>, (#\w+)>", stages["ttgir"])):
            shape = re.search(rf"^{layout} = .*threadsPerWarp = \[(\d+), 1\]", stages["ttgir"], re.M)
            assert shape is not None
            assert shape[1] == "32", "the threads of a warp do not load neighbouring groups"
    slow = {"KIND": triton_elements.INT64, "SIZE": 8, "PER": 0, "DIMS": 3, "PACKED": 0, "EARLY": 1}
    rest = [compiled(triton_kernels.measure, 90, data="*i64", **slow), compiled(triton_kernels.reduce, 90)]
    print(f"{len(fast + rest)} compile")


if __name__ == "__main__":
    main()
