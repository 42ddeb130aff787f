"""Two gloo ranks on one machine, each a process of its own."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

WORLD = 2
Job = Callable[[int, str], list[float]]


def launch(job: Job, variant: str) -> list[float]:
    """Run job(rank, variant) on both ranks and return all their values, rank 0's first."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_work, (job, variant, folder), WORLD)
        return [value for rank in range(WORLD) for value in json.loads(Path(folder, f"{rank}.json").read_text())]


def _work(rank: int, job: Job, variant: str, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    try:
        Path(folder, f"{rank}.json").write_text(json.dumps(job(rank, variant)))
    finally:
        dist.destroy_process_group()
