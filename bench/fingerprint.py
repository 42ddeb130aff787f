"""The fingerprint on one CPU core: time per small tensor, and speed on large ones.

    python bench/fingerprint.py [--numpy] [--json FILE]

Times are CPU time of the process, the best of many repetitions: other programs on the machine disturb them less.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch

from numscope.fingerprint.torch_form import TorchBatch

SIZES = (64, 192, 256, 2048, 2048, 2048, 2048, 8192, 8192, 1024, 512, 3072)  # elements, as in a step of a small model


def cases() -> dict[str, list[torch.Tensor]]:
    tensors = {f"300 float32 of {size}": [torch.randn(size) for _ in range(300)] for size in (16, 256, 2048, 8192)}
    tensors["300 float32 as in a step"] = [torch.randn(SIZES[number % len(SIZES)]) for number in range(300)]
    tensors["300 bfloat16 as in a step"] = [tensor.bfloat16() for tensor in tensors["300 float32 as in a step"]]
    tensors["300 float32 8 x 256, transposed"] = [torch.randn(8, 256).T for _ in range(300)]
    tensors["300 float32 of 4096, half -inf"] = [
        torch.randn(4096).masked_fill_(torch.rand(4096) < 0.5, -torch.inf) for _ in range(300)
    ]
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64):
        count = (64 << 20) // dtype.itemsize
        tensors[f"64 MB {str(dtype)[6:]}"] = [(torch.randn(count) * 9).to(dtype)]
    tensors["64 MB float32, transposed"] = [torch.randn(4096, 4096).T]
    return tensors


def measure(batch: TorchBatch, tensors: list[torch.Tensor], repeat: int) -> tuple[float, float]:
    """Return the seconds of one `add`, and of `add` and its share of `collect`."""
    best = (float("inf"), 0.0)
    for _ in range(repeat):
        start = time.process_time()
        for tensor in tensors:
            batch.add(tensor)
        added = time.process_time()
        batch.collect()
        best = min(best, (time.process_time() - start, added - start))
    return best[1] / len(tensors), best[0] / len(tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numpy", action="store_true", help="as where there is no compiler")
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch = TorchBatch(native=not options.numpy)
    report = {}
    for name, tensors in cases().items():
        add, total = measure(batch, tensors, 20 if len(tensors) > 1 else 3)
        size = tensors[0].numel() * tensors[0].element_size() if len(tensors) == 1 else 0
        speed = f"{size / total / 1e9:6.2f} GB/s" if size else ""
        report[name] = {"add_us": round(add * 1e6, 2), "total_us": round(total * 1e6, 2)}
        print(f"{name:34s} add {add * 1e6:9.2f} us   with collect {total * 1e6:9.2f} us per tensor {speed}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
