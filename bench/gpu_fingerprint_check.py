"""Check of the fingerprint on a CUDA GPU against the definition: every dtype, layouts, special values, streams.

Part of bench/gpu_fingerprint.py, which runs it.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl

from numscope.fingerprint.cuda.tables import tables_of
from numscope.fingerprint.definition import fingerprint
from numscope.fingerprint.rows import Rows
from numscope.fingerprint.torch_form import TorchBatch
from numscope.fingerprint.torch_ops import DeviceBatch

DEVICE = torch.device("cuda", 0)
DTYPES = ("float32", "bfloat16", "float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
DTYPES += ("uint64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")
DTYPES += ("float8_e5m2fnuz", "float8_e8m0fnu")
SIZES = (1, 2, 3, 61, 65, 1000, 1024, 1025, 2047, 2049, 65537, 1_000_003, 3_100_001)


def numpy_of(tensor: torch.Tensor) -> np.ndarray:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    name = str(plain.dtype).removeprefix("torch.")
    if hasattr(ml_dtypes, name):
        bits = torch.uint8 if plain.dtype.itemsize == 1 else torch.int16
        return plain.reshape(-1).view(bits).numpy().view(getattr(ml_dtypes, name)).reshape(plain.shape)
    return plain.numpy()


def random_tensor(name: str, count: int, raw: bool) -> torch.Tensor:
    dtype = getattr(torch, name)
    if raw:
        bits = torch.randint(0, 2 if name == "bool" else 256, (count * dtype.itemsize,), dtype=torch.uint8)
        return bits.to(DEVICE).view(dtype)
    value = torch.randn(count, dtype=torch.float64) * 3
    if dtype.is_complex:
        return torch.complex(value, torch.randn(count, dtype=torch.float64)).to(dtype).to(DEVICE)
    return (value.abs() if name.startswith("u") or "e8m0" in name else value).to(dtype).to(DEVICE)


class Checker:
    def __init__(self, batch: Any) -> None:
        self.batch, self.tensors, self.names, self.failures, self.checked = batch, [], [], [], 0

    def add(self, tensor: torch.Tensor, name: str) -> None:
        alike = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        array = numpy_of(tensor)
        # The first one is looked at, the second makes a plan, the third is measured by it.
        for turn in range(3 if isinstance(self.batch, TorchBatch) else 1):
            if isinstance(self.batch, TorchBatch):
                self.batch.add_alike(tensor, alike)
            else:
                self.batch.add(tensor)
            self.tensors.append(array)
            self.names.append(f"{name}, time {turn + 1}")

    def finish(self) -> None:
        result = self.batch.collect()
        before, known = None, None
        for row, (array, name) in enumerate(zip(self.tensors, self.names)):
            self.checked += 1
            if array is not before:
                before, known = array, fingerprint(array)
            wrong = [
                f"{field} {getattr(result, field)[row]} is not {getattr(known, field)[0]}"
                for field in ("elements", "nan", "posinf", "neginf", "zero", "min", "max", "hash")
                if not np.array_equal(
                    getattr(result, field)[row], getattr(known, field)[0], equal_nan=field in ("min", "max")
                )
            ]
            scale = float(known.l2[0])
            if scale < 1e300:
                if abs(result.l2[row] - scale) > 1e-6 * scale:
                    wrong.append(f"l2 {result.l2[row]} is not {scale}")
                if not np.allclose(
                    result.mean[row],
                    known.mean[0],
                    rtol=0,
                    atol=1e-6 * scale / max(array.size, 1) ** 0.5,
                    equal_nan=True,
                ):
                    wrong.append(f"mean {result.mean[row]} is not {known.mean[0]}")
                unit = scale or 1.0
                off = np.linalg.norm(result.sketch[row] / unit - known.sketch[0] / unit)
                if off > 1e-6:
                    wrong.append(f"sketch is off by {off:.1e}")
            if wrong:
                self.failures.append(f"{name}: {'; '.join(wrong)}")
        self.tensors, self.names = [], []


class OperationsBatch:
    """Measures by torch operations, which the torch form would not choose on this device."""

    def __init__(self) -> None:
        self.rows, self.device = Rows(), DeviceBatch(DEVICE)

    def add(self, tensor: torch.Tensor) -> None:
        self.rows.count += 1
        self.device.add(self.rows.count - 1, tensor.detach())

    def collect(self) -> Any:
        self.device.begin()(self.rows)
        return self.rows.hand_over()


def check(quick: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    batch = TorchBatch()
    batch.add(torch.ones(3, device=DEVICE))
    batch.collect()
    if batch.fallbacks:
        return {"checked": 0, "failures": [f"Triton was not used: {batch.fallbacks}"]}
    outcome: dict[str, Any] = {"checked": 0, "failures": []}
    for name, form in (("triton", batch),) if quick else (("triton", batch), ("operations", OperationsBatch())):
        checker = Checker(form)
        for dtype, size in itertools.product(DTYPES[:4] if quick else DTYPES, SIZES):
            if size > 70_000 and (dtype not in ("float32", "bfloat16", "float64", "int64") or name == "operations"):
                continue
            for raw in (False, True):
                checker.add(random_tensor(dtype, size, raw), f"{name} {dtype} {size} raw={raw}")
        checker.finish()
        check_special(checker, name)
        checker.finish()
        check_layouts(checker, name)
        checker.finish()
        outcome["checked"] += checker.checked
        outcome["failures"] += checker.failures
    outcome["failures"] += check_streams_and_order(batch)
    if tables_of(DEVICE).early:
        outcome["failures"] += check_early_launches(batch)
    return outcome


def check_special(checker: Checker, name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for size in (100, 5000, 2_500_001):
            for filler in (float("nan"), float("inf"), -float("inf"), 0.0, -0.0):
                value = torch.randn(size, device=DEVICE).to(dtype)
                value[torch.rand(size, device=DEVICE) < 0.3] = filler
                checker.add(value, f"{name} {dtype} {size} with {filler}")
            checker.add(torch.full((size,), 0.1, device=DEVICE, dtype=dtype), f"{name} {dtype} {size} constant")
            checker.add(torch.full((size,), float("nan"), device=DEVICE, dtype=dtype), f"{name} {dtype} {size} all nan")
            checker.add(torch.zeros(size, device=DEVICE, dtype=dtype), f"{name} {dtype} {size} zeros")
    for exponent in (-148, -100, -41, -39, 49, 51, 100, 125):
        for size in (100, 3_000_000):
            value = torch.randn(size, device=DEVICE, dtype=torch.float64)
            checker.add((value * 2.0**exponent).float(), f"{name} float32 {size} times 2**{exponent}")
            checker.add(value * 2.0 ** (8 * exponent), f"{name} float64 {size} times 2**{8 * exponent}")
    checker.add(torch.tensor(3.5, device=DEVICE), f"{name} 0-d")
    checker.add(torch.zeros(0, 5, device=DEVICE), f"{name} empty")


def check_layouts(checker: Checker, name: str) -> None:
    for dtype in ("float32", "bfloat16", "complex64", "int64", "float8_e4m3fn", "bool"):
        for shape in ((7, 5, 3), (300, 200, 30)):
            value = random_tensor(dtype, int(np.prod(shape)), False).view(shape)
            views = {
                "transposed": value.transpose(0, 1),
                "permuted": value.permute(2, 1, 0),
                "stepped": value[::2, :, 1],
                "cut": value[1:, 1:],
                "last": value[..., 0],
                "expanded": value[:1].expand(40, *shape[1:]),
                "scalar expanded": value[0, 0, 0].expand(3000, 5),
                "odd beginning": value.reshape(-1)[1:],
                "seven dimensions": value.reshape(-1)[: 2 * 3 * 2 * 1 * 1 * 1]
                .view(2, 3, 2, 1, 1, 1)
                .permute(5, 2, 0, 1, 3, 4),
            }
            for view, tensor in views.items():
                checker.add(tensor, f"{name} {dtype} {shape} {view}")
    value = torch.randn(700, 900, dtype=torch.complex64, device=DEVICE)
    for view, tensor in {"conj": value.conj(), "conj.T": value.conj().T, "neg": value.conj().imag}.items():
        checker.add(tensor, f"{name} {view}")
    heads = torch.randn(4, 512, 12, 64, device=DEVICE).bfloat16().transpose(1, 2)
    checker.add(heads, f"{name} attention heads")
    checker.add(heads.transpose(2, 3), f"{name} attention heads transposed")


def check_streams_and_order(batch: TorchBatch) -> list[str]:
    failures = []
    value = torch.randn(5_000_000, device=DEVICE)
    side = torch.cuda.Stream()
    results = []
    for _ in range(2):
        batch.add(value)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            batch.add(value)
        torch.cuda.current_stream().wait_stream(side)
        results.append(batch.collect())
    for one in results:
        if (
            len(set(one.l2.tolist())) != 1
            or one.l2[0] != results[0].l2[0]
            or (one.sketch != results[0].sketch[0]).any()
        ):
            failures.append("results differ between streams or repetitions")
    for _ in range(10_000):  # more rows, and more records, than one buffer holds
        batch.add(value[:3])
    for _ in range(60):
        batch.add(value)
    many = batch.collect()
    if len(many) != 10_060 or len(set(many.hash[:10_000].tolist())) != 1 or len(set(many.hash[10_000:].tolist())) != 1:
        failures.append("rows were lost or mixed when the buffers turned over")
    sizes = [3, 64, 1000, 70_001, 300_000, 2_000_000] * 60
    mixed = [torch.randn(size, device=DEVICE).to((torch.float32, torch.bfloat16)[size % 2]) for size in sizes]
    for _ in range(2):
        alone = [batch.add_alike(tensor, (tensor.dtype, tensor.numel())) for tensor in mixed]
    with batch.together():
        together = [batch.add_alike(tensor, (tensor.dtype, tensor.numel())) for tensor in mixed]
    both = batch.collect()
    if (both.hash[alone] != both.hash[together]).any() or (both.sketch[alone] != both.sketch[together]).any():
        failures.append("measured together, tensors are not what they are alone")
    other = torch.randn(5_000_000, device=DEVICE)
    for turn in range(3):  # other contents in the same lines: a result of the turn before would show
        pair = (value, other) if turn % 2 else (other, value)
        known = [int(row) for tensor in pair for row in (batch.add(tensor), batch.collect().hash[0])[1:]]
        for index in range(80):
            batch.add(pair[index % 2])
        if batch.collect().hash.tolist() != known * 40:
            failures.append("results of an earlier batch came back: the copy to the host did not wait for the kernels")
    small = value[:1000].clone()
    row = batch.add(small)
    small.zero_()
    if batch.collect().zero[row] != 0:
        failures.append("a tensor was measured after it changed")
    return failures


@triton.jit
def _write_late(out, number):  # type: ignore[no-untyped-def]
    """Let the next kernel begin at once, and write only after a long while."""
    tl.extra.cuda.gdc_launch_dependents()
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    chain = at
    for _ in range(3000):
        chain = chain * 1664525 + 1013904223
    tl.store(out + at, tl.where(chain == 12345, number + 1, number).to(tl.float32))


def check_early_launches(batch: TorchBatch) -> list[str]:
    """Measure right after kernels that let the next one begin before they have written anything."""
    failures = []
    for tiles in (3, 600, 20_000):
        tensor = torch.zeros(tiles * 1024, device=DEVICE)
        apart = torch.zeros(tiles * 4, 2, 256, device=DEVICE)[:, 0]  # in rows that lie apart
        known = [int(batch.collect().hash[0]) for turn in range(20) if batch.add(torch.full_like(tensor, turn)) == 0]
        for turn in range(20):
            _write_late[(tiles,)](tensor, turn)
            batch.add(tensor)
        for turn in range(20):
            _write_late[(tiles,)](tensor, turn)
            apart.copy_(tensor.view_as(apart))
            batch.add(apart)
        side = torch.cuda.Stream()
        for turn in range(20):  # written on another stream, behind which this one waits
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                _write_late[(tiles,)](tensor, turn)
            torch.cuda.current_stream().wait_stream(side)
            batch.add(tensor)
        if batch.collect().hash.tolist() != known * 3:
            failures.append(f"{tiles} tiles were measured before the kernel before had written them")
    return failures
