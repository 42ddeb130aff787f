"""Two gloo ranks on one machine, each a process of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

WORLD = 2
Job = Callable[[int, str], list[float]]


def launch(job: Job, variant: str) -> list[float]:
    """Run job(rank, variant) on both ranks and return all their values, rank 0's first."""
    with tempfile.TemporaryDirectory() as folder:
        results = torch.full((WORLD, 16), float("nan"), dtype=torch.float64).share_memory_()
        torch.multiprocessing.spawn(_work, (job, variant, os.path.join(folder, "store"), results), WORLD)
    return [value for value in results.flatten().tolist() if value == value]


def _work(rank: int, job: Job, variant: str, store: str, results: Tensor) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    try:
        values = job(rank, variant)
        results[rank, : len(values)] = torch.tensor(values, dtype=torch.float64)
    finally:
        dist.destroy_process_group()
