"""A profile of guarded steps on a GPU: the host's time and the device's.

PYTHONPATH=src python3 bench/guard_profile.py [mix|module]
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time

import torch
from gpu import SIZES, Training

import numscope as ns

level = sys.argv[1] if len(sys.argv) > 1 else "mix"
training = Training(SIZES["large"], "cuda")
training.block(training.step, 3)
begin = time.perf_counter()
training.step()
plain_host = time.perf_counter() - begin
torch.cuda.synchronize()
with ns.guard(training.model, level=level, record=None):
    for _ in range(2):
        training.step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    training.step()
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(2):
        training.step()
    profiler.disable()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        training.step()
        torch.cuda.synchronize()
print(f"host alone: plain {plain_host * 1e3:.1f} ms, {level} {host * 1e3:.1f} ms")
pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
rows = [row for row in trace.key_averages() if row.key in ("_one", "_many")]
for row in rows:
    print(row.key, row.count, "launches", f"{row.device_time_total / 1e3:.2f} ms on the device")
