"""Exact measures of large tensors on one core: prints one line of JSON, GB of both sides per second of processor time.

The best of many repetitions: other programs on the machine disturb those least.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is loaded

import ml_dtypes
import numpy as np

from numscope.compare.measure.exact import measure_arrays

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    random = np.random.default_rng(0)
    base = random.standard_normal((args.elements // 1024, 1024), np.float32)
    noise = random.standard_normal(base.shape, np.float32)
    result: dict[str, float] = {}
    for name, dtype in DTYPES.items():
        for what, reference in (("", base), (", half of it zeros", np.maximum(base, 0))):
            a, b = (reference * (1 + 1e-3 * noise)).astype(dtype), reference.astype(dtype)
            best = float("inf")
            for _ in range(args.repeats):
                begin = time.process_time()
                measure_arrays(a, b, (name, name))
                best = min(best, time.process_time() - begin)
            result[f"{name}{what}"] = (a.nbytes + b.nbytes) / best / 1e9
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
