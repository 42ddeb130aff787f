"""Run Triton's kernels in its interpreter on the CPU and compare them with the definition; prints how many agreed.

A program of its own, because Triton decides when it is imported whether it compiles or interprets.
"""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.runtime.interpreter as interpreter

from numscope.fingerprint import triton_form, triton_kernels
from numscope.fingerprint.kinds import Kind
from numscope.fingerprint.rows import Rows
from numscope.fingerprint.triton_tables import DeviceTables
from tests.unit.fingerprint.agreement import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    assert_agrees,
    numpy_of,
    tensor_of_bytes,
    tensor_of_normals,
)

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_patch = interpreter._patch_lang_tensor


def _patch_index(tensor: type, scope: object) -> None:
    """Let `range` take a scalar: the interpreter's own way fails with numpy 2.4."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).item()))


interpreter._patch_lang_tensor = _patch_index


class Interpreted(triton_form.StreamBatch):
    """A stream whose launches are interpreted."""

    def _launch(
        self, kind: Kind, per: int, dims: int, data: torch.Tensor, programs: int, numbers: tuple[int, ...]
    ) -> None:
        tables, bits = self.tables, _BITS[4 if per else kind.size]
        whole = torch.empty(0, dtype=torch.uint8).set_(data.untyped_storage())
        begin = data.storage_offset() * data.element_size()
        padded = torch.cat([whole[begin:], torch.zeros(8 - (whole.numel() - begin) % 8, dtype=torch.uint8)])
        code, values = tables.code(kind)
        triton_kernels.measure[(programs,)](
            padded.view(bits), self.ring, self.table, tables.places, tables.blocks, tables.spans, tables.chunks,
            tables.rows, self.scratch, values, *numbers, code, kind.size, per, dims, triton_form.TUNING.many,
        )  # fmt: skip

    def _launch_reduce(self, lines: int, first: int) -> None:
        triton_kernels.reduce[(lines,)](self.ring, self.table[2 * first :], self.out[triton_kernels.RECORD * first :])

    def _to_host(self, buffers: list[torch.Tensor]) -> Callable[[], np.ndarray]:
        joined = torch.cat(buffers).numpy()
        return lambda: joined


def check(tensors: list[torch.Tensor]) -> int:
    batch, rows = Interpreted(DeviceTables(torch.device("cpu")), 0, None), Rows()
    for tensor in tensors:
        batch.add(rows.count, tensor)
        rows.count += 1
    batch.begin()(rows)
    result = rows.hand_over()
    for row, tensor in enumerate(tensors):
        assert_agrees(result, numpy_of(tensor), row, tensor.numel())
    return len(tensors)


def main() -> None:
    triton_form.RECORDS = 200  # the ring must turn over
    triton_form.LINES = 8  # and the lines
    triton_form.COPIED = 2048
    count = 0
    for name in FLOATS + INTEGERS + COMPLEX[1:]:
        count += check(
            [tensor_of_normals(name, size, size) for size in (1, 1000, 2051)] + [tensor_of_bytes(name, 70, 0)]
        )
    for name in ("float32", "bfloat16", "float16"):
        value = tensor_of_normals(name, 3000, 0)
        value[7], value[2999] = float("nan"), -float("inf")
        count += check([value, value[1:], torch.full((1500,), float("nan")).to(value.dtype), torch.zeros(0)])
    count += check([tensor_of_normals("float64", 1500, 0) * 2.0**power for power in (-1060, 1000)])
    count += check([(tensor_of_normals("float64", 1500, 0) * 2.0**power).float() for power in (-140, 120)])
    triton_form.TUNING.programs = 61  # several tiles per program
    count += check([tensor_of_normals("float32", 290_001, 0), tensor_of_normals("bfloat16", 500_001, 0)])
    value = tensor_of_normals("float32", 30 * 50 * 3, 0).view(30, 50, 3)
    count += check([value.transpose(0, 1), value[::2, :, 1], value.permute(2, 1, 0), value[:1].expand(9, 50, 3)])
    count += check([value.view(2, 3, 5, 2, 5, 5, 3).permute(6, 1, 4, 3, 2, 5, 0), value[0, 0, 0]])
    heads = tensor_of_normals("complex64", 900, 0).view(30, 30)
    count += check([heads.conj(), heads.conj().T, heads.conj().imag, heads.T])
    print(f"{count} agree")


if __name__ == "__main__":
    main()
