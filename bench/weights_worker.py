"""`numscope weights` on a pair of large files, beside a plain read of both: prints one line of JSON.

Neither file is in the system's cache when it is read. The files are deleted afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

HIDDEN, WIDE, KEYS = 4096, 11008, 1024  # of a layer: 0.18 billion parameters
CASES = (
    "identical",
    "one row differs",
    "fused",
    "cast",
    "sparse",
)  # sparse: holes in place of numbers, for memory alone
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (WIDE, HIDDEN),
    "mlp.up_proj": (WIDE, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDE),
}
_COMPARE = """
import json, resource, sys
import numscope as ns
answer = ns.weights(sys.argv[1], sys.argv[2])
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
print(json.dumps({"verdict": answer.verdict, "memory_mb": memory}))
"""
_PER_LAYER = 2 * (2 * HIDDEN * HIDDEN + 2 * KEYS * HIDDEN + 3 * WIDE * HIDDEN)  # bytes


def tensors(layers: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the matrices of some layers in bfloat16: views of one block of random numbers, each altered."""
    block = np.random.default_rng(0).normal(0, 0.02, (WIDE + layers * 16, HIDDEN)).astype(ml_dtypes.bfloat16)
    for layer in range(layers):
        for number, (name, shape) in enumerate(SHAPES.items()):
            start = layer * 16 + number
            words = block.reshape(-1).view(np.uint16)[start * HIDDEN :][: shape[0] * shape[1]] ^ np.uint16(number + 1)
            yield f"model.layers.{layer}.{name}.weight", words.view(ml_dtypes.bfloat16).reshape(shape)


def sparse(path: Path, layers: int) -> int:
    """Write a side whose tensors are holes: a file as large as one likes, without a disk as large."""
    header: dict[str, object] = {}
    at = 0
    for layer in range(layers):
        for name, shape in SHAPES.items():
            size = 2 * shape[0] * shape[1]
            header[f"model.layers.{layer}.{name}.weight"] = {
                "dtype": "BF16",
                "shape": list(shape),
                "data_offsets": [at, at + size],
            }
            at += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + at)
    return at


def write(path: Path, layers: int, case: str, is_suspect: bool) -> int:
    """Write a side of the pair, a tensor at a time; return its bytes."""
    if case == "sparse":
        return sparse(path, layers)
    made: dict[str, tuple[str, list[int], int]] = {}
    data = path.with_suffix(".data")
    total = 0
    with data.open("wb") as file:
        waiting: list[np.ndarray] = []
        for name, array in tensors(layers):
            if is_suspect and case == "one row differs" and name.endswith("layers.0.mlp.up_proj.weight"):
                array[17] += array[18]
            if is_suspect and case == "fused" and any(part in name for part in ("q_proj", "k_proj", "v_proj")):
                waiting.append(array)
                if len(waiting) < 3:
                    continue
                name, array = name.replace("v_proj", "qkv_proj"), np.concatenate(waiting)
                waiting = []
            if not is_suspect and case == "cast":
                array = array.astype(np.float32)
            made[name] = ("F32" if array.dtype == np.float32 else "BF16", list(array.shape), array.nbytes)
            file.write(array.view(np.uint8).data)
            total += array.nbytes
        os.fsync(file.fileno())
    header: dict[str, object] = {}
    at = 0
    for name, (dtype, shape, size) in made.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as out, data.open("rb") as file:
        out.write(len(text).to_bytes(8, "little") + text)
        out.flush()
        copied = 0
        while copied < total:
            copied += os.sendfile(out.fileno(), file.fileno(), copied, 1 << 30)
        os.fsync(out.fileno())
    data.unlink()
    return total


def leave_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(path: Path) -> None:
    held = bytearray(1 << 24)
    with path.open("rb", buffering=0) as file:
        while file.readinto(held):
            pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the suspect")
    parser.add_argument("--case", choices=CASES, default="identical")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    layers = max(1, round(args.gigabytes * 1e9 / _PER_LAYER))
    a, b = args.out / "a.safetensors", args.out / "b.safetensors"
    try:
        size = write(a, layers, args.case, True) + write(b, layers, args.case, False)
        for path in (a, b):
            leave_cache(path)
        begin = time.perf_counter()
        for path in (a, b):
            plain_read(path)
        plain = time.perf_counter() - begin
        for path in (a, b):
            leave_cache(path)
        begin = time.perf_counter()
        command = [sys.executable, "-c", _COMPARE, str(a), str(b)]  # its own process: the memory is its alone
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        seconds = time.perf_counter() - begin
    finally:
        for path in (a, b):
            path.unlink(missing_ok=True)
    result |= {"seconds": seconds, "plain": plain, "gigabytes": size / 1e9}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
