"""Run Triton's kernels in its interpreter on the CPU and compare them with the definition; prints how many agreed.

A program of its own, because Triton decides when it is imported whether it compiles or interprets.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.runtime.interpreter as interpreter

from numscope.fingerprint.cuda import kernels as triton_kernels
from numscope.fingerprint.cuda import shapes as triton_shapes
from numscope.fingerprint.cuda import stream as triton_stream
from numscope.fingerprint.cuda import transposed as triton_transposed
from numscope.fingerprint.cuda.launch import Launch
from numscope.fingerprint.cuda.tables import DeviceTables
from numscope.fingerprint.kinds import Kind
from numscope.fingerprint.rows import Rows
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


class Interpreted(triton_stream.StreamBatch):
    """A stream whose launches are interpreted."""

    def __init__(self, tables: DeviceTables) -> None:
        super().__init__(tables, 0, None)
        self.seen: dict[int, torch.Tensor] = {}  # by address: the interpreter wants tensors

    def _launch(
        self, kind: Kind, per: int, dims: int, data: torch.Tensor, programs: int, numbers: tuple[int, ...]
    ) -> None:
        tables, bits = self.tables, _BITS[4 if per else kind.size]
        whole = torch.empty(0, dtype=torch.uint8).set_(data.untyped_storage())
        begin = data.storage_offset() * data.element_size()
        padded = torch.cat([whole[begin:], torch.zeros(8 - (whole.numel() - begin) % 8, dtype=torch.uint8)])
        code, values = tables.code(kind)
        triton_kernels.measure[(programs,)](
            padded.view(bits),
            *self._parts(per),
            values,
            *numbers,
            code,
            kind.size,
            per,
            dims,
            0,
            False,
        )

    def _starter(self, kind: Kind, per: int, dims: int, *, aligned: bool) -> Launch:
        assert aligned

        def start(programs: int, y: int, z: int, stream: int, address: int, *numbers: int) -> None:
            self._launch(kind, per, dims, self.seen[address], programs, numbers[len(self._parts(per)) + 1 : -6])

        return Launch(start, ())

    def _compile_transposed(self, kind: Kind, even: int) -> Launch:
        def start(programs: int, y: int, z: int, stream: int, address: int, out: int, *numbers: int) -> None:
            source = self.seen[address]
            bits = _BITS[kind.size]
            whole = torch.empty(0, dtype=torch.uint8).set_(source.untyped_storage())
            straight = torch.empty(0, dtype=bits).set_(self.straight.untyped_storage())
            triton_transposed.transposed[(programs,)](
                whole[source.storage_offset() * source.element_size() :].view(bits), straight, *numbers
            )

        return Launch(start, ())

    def _turned(self, address: int, turn: triton_stream.Turn) -> torch.Tensor:
        straight = super()._turned(address, turn)
        self.seen[straight.data_ptr()] = straight
        return straight

    def _launch_many(self, kind: Kind, per: int, table: np.ndarray) -> None:
        code, values = self.tables.code(kind)
        triton_kernels.measure_many[(len(table),)](
            torch.from_numpy(table), *self._parts(per), values, code, kind.size, per, 0
        )

    def _launch_reduce(self, lines: int, first: int) -> None:
        triton_kernels.reduce[(lines,)](self.ring, self.table[2 * first :], self.out[triton_kernels.RECORD * first :])

    def _to_host(self, buffers: list[torch.Tensor]) -> Callable[[], np.ndarray]:
        joined = torch.cat(buffers).numpy()
        return lambda: joined


class Everywhere(Interpreted):
    """One that remembers what it is given."""

    def add(self, row: int, tensor: torch.Tensor, address: int) -> None:
        self.seen[address] = tensor
        super().add(row, tensor, address)


TABLES = DeviceTables(torch.device("cpu"))


def check(tensors: list[torch.Tensor], *, again: bool = True) -> int:
    """Measure each tensor; then again, as one whose like was seen, and all together."""
    batch, rows = Interpreted(TABLES), Rows()
    batch.seen = {tensor.data_ptr(): tensor for tensor in tensors}
    one_by_one = tensors * (2 if again else 1)
    for row, tensor in enumerate(one_by_one):
        batch.add(row, tensor, tensor.data_ptr())
    together = tensors if again else []
    rows.count = len(one_by_one) + len(together)
    jobs: list[triton_stream.Job] = []
    for row, tensor in enumerate(together, len(one_by_one)):
        put_off = tensor.is_conj() or tensor.is_neg()
        batch.learn(tensor, row)
        jobs.append((row, tensor, tensor.data_ptr(), None if put_off else row))
    batch.add_many(jobs)
    batch.begin()(rows)
    result = rows.hand_over()
    for row, tensor in enumerate(one_by_one + together):
        assert_agrees(result, numpy_of(tensor), row, tensor.numel())
    return len(one_by_one + together)


def check_shares() -> None:
    """Tensors are shared among programs one tile each, or in multiples of 61."""
    most = triton_shapes.MOST_PROGRAMS * triton_shapes.MOST_TILES
    for at_once in (1, 60, 264, 528):
        shares = [triton_shapes.programs_for(tiles, at_once) for tiles in (1, 61)]
        assert shares == [1, 61]
        for tiles in (62, 977, 9770, 32768, 61 * 2000, most):
            share = triton_shapes.programs_for(tiles, at_once)
            assert share % 61 == 0
            assert -(-tiles // share) <= triton_shapes.MOST_TILES
    assert triton_shapes.programs_for(32768, 528) == 17 * 61  # two full waves, not one and a bit


def check_dimensions() -> None:
    """Dimensions that follow one another are taken as one."""
    collapsed = triton_shapes.collapsed
    heads = torch.empty(2, 8, 4, 16).transpose(1, 2)
    assert collapsed(heads, 1) == [16, 8, 4, 2, 1, 64, 16, 512, 0, 5]
    assert collapsed(torch.empty(6, 1, 5)[:, :, :3], 1) == [3, 6, 1, 1, 1, 5, 0, 0, 0, 3]
    assert collapsed(torch.empty(1).expand(4, 5), 1) == [20, 1, 1, 1, 0, 0, 0, 0, 0, 3]
    assert collapsed(torch.empty(4096, 4096).T, 1) is None
    assert collapsed(torch.empty(2, 2, 2, 2, 2, 2).permute(5, 4, 3, 2, 1, 0), 1) is None


def in_rows() -> list[torch.Tensor]:
    """Return tensors whose rows lie apart, in all the ways that the fast loop follows."""
    found = []
    for name, unit in (("float32", 8), ("bfloat16", 8), ("float16", 8), ("float8_e5m2", 16), ("int8", 16)):
        value = tensor_of_normals(name, 3 * 5 * 4 * 7 * 3 * unit, 0).view(3, 5, 4, 7, 3 * unit)
        found += [
            value.permute(1, 3, 0, 2, 4)[:, :, 1],
            value.permute(3, 1, 0, 2, 4),
            value[:, :, 1:3, 2:, unit:],
            value[0, 0].transpose(0, 1),
            value[:1, 0, 0].expand(11, 7, 3 * unit),
            value[0, 0, 0, :, : 2 * unit].expand(6, 7, 2 * unit),
        ]
        assert all(triton_shapes.in_rows(tensor, 1, triton_shapes.PER[name]) for tensor in found[-6:])
        found += [value[..., :4], value[..., 1:9]]
        if name != "int8":
            spoilt = value[:, 1].clone()
            spoilt[1, 1, 1, 1:2] = -float("inf")
            found += [spoilt[..., unit:]]
    return [*found, tensor_of_normals("complex64", 1200, 0).view(2, 30, 20)[:, 3:17, 4:12]]


def transposed() -> list[torch.Tensor]:
    """Return matrices that lie transposed."""
    triton_shapes.LEAST_COPY = 1000
    matrix = tensor_of_normals("bfloat16", 75 * 64, 0).view(75, 64)
    stack = tensor_of_normals("float32", 2 * 3 * 66 * 24, 0).view(2, 66, 3, 24)
    found = [matrix.T, stack.permute(0, 2, 3, 1)[..., :65], stack.permute(2, 0, 3, 1)[:, :, 1:]]
    assert all(triton_shapes.turned(tensor, 1) for tensor in found)
    return [*found, matrix.T]


def check_division() -> None:
    """A multiplication and a shift stand for a division."""
    for size in (1, 2, 3, 7, 61, 64, 65, 1000, 4097, (1 << 20) + 7):
        rows = triton_shapes.in_rows(torch.empty(12).as_strided((2, size, 4), (8, 0, 1)), 1, 1)
        assert rows is not None
        divisor = rows[1] if size > 1 else 1
        for number in (0, 1, size - 1, size, 12345, 5 * size - 1, (1 << 30) - 1):
            assert ((number * (divisor & 0xFFFFFFFF) >> 32) + number) >> (divisor >> 32) == number // size


def check_device() -> None:
    """A device tries itself out, takes tensors one by one and many at once."""
    for name, result in (("getCurrentRawStream", 0), ("isCurrentStreamCapturing", False), ("getDevice", 0)):
        setattr(torch._C, f"_cuda_{name}", lambda *index, result=result: result)
    from numscope.fingerprint.cuda import form as triton_form

    torch.cuda.device, torch.cuda.current_stream = (lambda index: contextlib.nullcontext()), (lambda index: None)
    triton_form.LONG = 5 * triton_form.TILE
    triton_form.StreamBatch = lambda tables, stream, queue: Everywhere(tables)
    triton_form.CudaBatch(torch.device("cpu", 0))


def main() -> None:
    check_shares()
    check_dimensions()
    check_division()
    check_device()
    triton_stream.RECORDS = 200  # the ring must turn over
    triton_stream.LINES = 8  # and the lines
    triton_stream.COPIED = 2048
    count = 0
    for name in FLOATS + INTEGERS + COMPLEX[1:]:
        count += check(
            [tensor_of_normals(name, size, size) for size in (1, 1000, 2051)] + [tensor_of_bytes(name, 70, 0)],
            again=name in ("float32", "bfloat16", "int64", "float8_e4m3fn"),
        )
    for name in ("float32", "bfloat16", "float16"):
        value = tensor_of_normals(name, 3000, 0)
        value[7], value[2999] = float("nan"), -float("inf")
        count += check([value, value[1:], torch.full((1500,), float("nan")).to(value.dtype), torch.zeros(0)])
    count += check([tensor_of_normals("float64", 1500, 0) * 2.0**power for power in (-1060, 1000)])
    count += check([(tensor_of_normals("float64", 1500, 0) * 2.0**power).float() for power in (-140, 120)])
    TABLES.at_once = dict.fromkeys(TABLES.at_once, 61)  # several tiles per program
    longer = [tensor_of_normals("float32", 290_001, 0), tensor_of_normals("bfloat16", 500_001, 0)]
    longer += [tensor_of_normals(name, 520_003, 0) for name in ("float8_e4m3fn", "uint8")]
    longer += [torch.arange(256, dtype=torch.uint8).repeat(9).view(torch.int8), longer[-2][4:]]
    count += check(longer, again=False)
    value = tensor_of_normals("float32", 30 * 50 * 3, 0).view(30, 50, 3)
    strided = [value.transpose(0, 1), value[::2, :, 1], value.permute(2, 1, 0), value[:1].expand(9, 50, 3)]
    heads = tensor_of_normals("complex64", 900, 0).view(30, 30)
    count += check(
        [*strided, value.view(2, 3, 5, 2, 5, 5, 3).permute(6, 1, 4, 3, 2, 5, 0), value[0, 0, 0]], again=False
    )
    count += check(in_rows(), again=False)
    count += check(transposed(), again=False)
    count += check([heads.conj(), heads.conj().T, heads.conj().imag, heads.T], again=False)
    count += check([value, value.transpose(0, 1), heads, heads.conj(), value[:3].clone()])
    print(f"{count} agree")


if __name__ == "__main__":
    main()
