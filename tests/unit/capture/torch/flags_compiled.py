"""Compile the guard's Triton kernels for GPUs that are not here; prints how many did."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from numscope.capture.torch.guard.flag_kernel import _BLOCK, _KINDS, _many, _one


def compiled(kernel: Any, pointers: dict[str, str], size: int, bits: list[int], architecture: int) -> str:
    """Return the kernel as PTX."""
    constants = dict(zip(("SIZE", "EXPONENT", "FRACTION", "LOW", "BLOCK"), (size, *bits, _BLOCK[size])))
    names = kernel.arg_names
    types = {name: pointers.get(name, "i64") for name in names} | dict.fromkeys(constants, "constexpr")
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if types[name].startswith("*")}
    known = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, types, known, aligned)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": 8}).asm["ptx"]


def main() -> None:
    made = 0
    for size, *bits in _KINDS.values():
        word = "*i64" if size == 8 else "*i32"
        for architecture in (80, 90):
            for kernel in (_one, _many):
                pointers = {"x": word, "like": word, "out": "*i32", "table": "*i64"}
                ptx = compiled(kernel, pointers, size, bits, architecture)
                wide = "ld.global.v2.b64" if size == 8 else "ld.global.v4.b32"
                assert ptx.count(wide) >= 4, "the fast loop's loads are not of 16 bytes"
                made += 1
    print(f"{made} compile")


if __name__ == "__main__":
    main()
