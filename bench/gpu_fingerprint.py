"""The fingerprint on a CUDA GPU: agreement with the definition, bandwidth, and the host's time per tensor.

    python bench/gpu_fingerprint.py [--check] [--quick] [--sizes] [--sweep] [--launch] [--json FILE]

Needs torch, triton, numpy, ml_dtypes. Without a flag it does all; --quick checks the usual dtypes alone. Bandwidth is
bytes read over time, beside the copy bandwidth of the same card (bytes read and written over time). The sweep tries the
ways to compile the kernels. The figures of docs/explanation/performance.md come from `--quick --sizes --launch --json
bench/results/gpu_fingerprint.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch

from bench.gpu import about
from bench.gpu_fingerprint_check import DEVICE, check
from numscope.fingerprint.cuda import stream as triton_stream
from numscope.fingerprint.cuda.form import CudaBatch
from numscope.fingerprint.cuda.shapes import TUNING, Tuning
from numscope.fingerprint.cuda.tables import tables_of
from numscope.fingerprint.torch_form import TorchBatch


def timed(work: Callable[[int], None], count: int) -> float:
    """Return the GPU's best seconds for one of `count` calls in a row, all enqueued before the first begins."""
    best = math.inf
    for _ in range(5):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(4_000_000)  # the host's head start
        start.record()
        for number in range(count):
            work(number)
        stop.record()
        stop.synchronize()
        best = min(best, start.elapsed_time(stop) / 1e3 / count)
    return best


def bandwidth(cuda: CudaBatch, tensor: torch.Tensor) -> float:
    """Return in TB/s how fast contents like this one are read, one after the other: half a gigabyte, or 64 of them.

    The cache is not cleared by writing to it, as its lines would have to be written back meanwhile.
    """
    size = tensor.numel() * tensor.element_size()
    alike = [tensor.clone() for _ in range(min(63, (1 << 29) // size))]
    tensors = [tensor, *(other for other in alike if other.stride() == tensor.stride())]  # not of expanded ones
    cuda.add(0, tensor)
    batch = cuda.streams[torch.cuda.current_stream().cuda_stream]

    def work(number: int) -> None:
        batch.add(0, tensors[number], tensors[number].data_ptr())

    seconds = timed(work, len(tensors))
    batch.forget()
    return size / seconds / 1e12


def copying(source: torch.Tensor) -> float:
    """Return the copy bandwidth in TB/s."""
    target = torch.empty_like(source)

    def work(number: int) -> None:
        target.copy_(source)

    copy = 2 * source.numel() * 4 / timed(work, 4) / 1e12
    print(f"copy {copy:.2f} TB/s", flush=True)
    return copy


def sweep(copy: float, source: torch.Tensor) -> dict[str, Any]:
    result: dict[str, Any] = {}
    table = []
    for warps, registers in ((4, 96), (4, 128), (4, 168), (8, 64), (8, 80), (8, 96)):
        TUNING.update(dict.fromkeys((1, 2), Tuning(warps, registers)))
        tables_of.cache_clear()  # it holds compiled kernels
        try:
            cuda = CudaBatch(DEVICE)
        except Exception as error:
            print(f"warps {warps} registers {registers}: {error!r}"[:300], flush=True)
            continue
        for dtype in (torch.float32, torch.bfloat16):
            for megabytes in (64, 256):
                tensor = source[: (megabytes << 20) // dtype.itemsize].to(dtype)
                table.append((bandwidth(cuda, tensor), str(dtype)[6:], megabytes, warps, registers))
        del cuda
    for dtype, megabytes in itertools.product(("float32", "bfloat16"), (64, 256)):
        best = sorted((line for line in table if line[1:3] == (dtype, megabytes)), reverse=True)
        print(f"\n{dtype}, {megabytes} MB: TB/s (share of copy), warps, registers")
        for speed, _, _, warps, registers in best[:6]:
            print(f"  {speed:.2f} ({speed / copy:.0%})  {warps} {registers}")
        result[f"best {dtype} {megabytes} MB"] = best[:6]
    for per, dtype in ((1, "float32"), (2, "bfloat16")):  # the best sum over the sizes
        score: dict[Any, float] = {}
        for speed, name, _, *choice in table:
            if name == dtype:
                score[tuple(choice)] = score.get(tuple(choice), 0.0) + speed
        TUNING[per] = Tuning(*max(score, key=lambda choice: score[choice]))
        print(f"\nbest for {dtype}: {TUNING[per]}", flush=True)
    tables_of.cache_clear()
    result["choice"] = {per: str(tuning) for per, tuning in TUNING.items()}
    return result


def sizes(copy: float, source: torch.Tensor) -> list[Any]:
    cuda = CudaBatch(DEVICE)
    lines = []
    for name in ("float32", "bfloat16", "float16", "int64", "float64", "float8_e4m3fn"):
        dtype = getattr(torch, name)
        for megabytes in (1, 4, 16, 64, 256, 1024):
            count = (megabytes << 20) // dtype.itemsize
            tensor = source[: min(count, source.numel())].to(dtype)
            if tensor.numel() < count:
                tensor = tensor.repeat(-(-count // tensor.numel()))[:count]
            speed = bandwidth(cuda, tensor)
            lines.append((name, megabytes, round(speed, 3), round(speed / copy, 3)))
            print(f"{name:14s} {megabytes:5d} MB {speed:6.2f} TB/s {speed / copy:5.0%} of copy", flush=True)
    masked = source.masked_fill(source > 0, -float("inf"))
    heads = source[: 16 * 2048 * 16 * 128].view(16, 2048, 16, 128).bfloat16()
    for name, tensor in {
        "float32 half -inf": masked,
        "bfloat16 heads (b, s, h, d) -> (b, h, s, d)": heads.transpose(1, 2),
        "float32 matrix transposed": source.view(16384, 16384).T,
        "float32 row expanded": source[:4096].expand(16384, 4096),
    }.items():
        speed = bandwidth(cuda, tensor)
        lines.append((name, tensor.numel() * tensor.element_size() >> 20, round(speed, 3), round(speed / copy, 3)))
        print(f"{name:44s} {speed:6.2f} TB/s {speed / copy:5.0%} of copy", flush=True)
    return lines


def launch() -> dict[str, float]:
    result = {}
    batch = TorchBatch()
    heads = torch.randn(2, 16, 8, 64, device=DEVICE).transpose(1, 2)
    for name, tensor in {
        "float32 4 KB": torch.randn(1024, device=DEVICE),
        "bfloat16 512 KB": torch.randn(1 << 18, device=DEVICE).bfloat16(),
        "int64 8 KB": torch.arange(1024, device=DEVICE),
        "strided float32 64 KB": heads,
    }.items():
        batch.add(tensor)
        batch.collect()
        torch.cuda.synchronize()
        best = 1e9
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(500):
                batch.add(tensor)
            best = min(best, (time.perf_counter() - start) / 500)
            batch.collect()
        result[name] = round(best * 1e6, 2)
        print(f"add {name:24s} {best * 1e6:6.2f} us of host time", flush=True)
    several = [torch.randn(1024, device=DEVICE) for _ in range(300)]
    start = time.perf_counter()
    with batch.together():
        for tensor in several:
            batch.add(tensor)
    result["each of 300 together"] = round((time.perf_counter() - start) / 300 * 1e6, 2)
    print(f"add of 300 together {result['each of 300 together']} us of host time each", flush=True)
    tensor = torch.randn(1024, device=DEVICE)
    for _ in range(2000):
        batch.add(tensor)
    torch.cuda.synchronize()
    start = time.perf_counter()
    batch.collect()
    result["collect 2000 rows, ms"] = round((time.perf_counter() - start) * 1e3, 2)
    print(f"collect of 2000 rows {result['collect 2000 rows, ms']} ms", flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag in ("check", "quick", "sizes", "sweep", "launch"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    every = not (options.check or options.quick or options.sizes or options.sweep or options.launch)
    report: dict[str, Any] = {"about": about("cuda")}
    if every or options.check or options.quick:
        report["check"] = check(options.quick)
        print(f"checked {report['check']['checked']}, failures {len(report['check']['failures'])}")
        for failure in report["check"]["failures"][:40]:
            print("  ", failure, flush=True)
    if every or options.launch:
        report["launch"] = launch()
    if every or options.sizes or options.sweep:
        source = torch.randn(1 << 28, device=DEVICE)
        copy = copying(source)
        if every or options.sweep:
            report["sweep"] = sweep(copy, source)
        report["sizes"] = sizes(copy, source)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1))
    return 1 if report.get("check", {}).get("failures") else 0


if __name__ == "__main__":
    assert triton_stream.TILE == 1024
    sys.exit(main())
