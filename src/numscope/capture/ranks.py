"""Which rank of how many this process is, from what the job itself says; no framework is imported to find out."""

from __future__ import annotations

import os
import sys


def current() -> tuple[int, int]:
    """Return (rank, world size) of this process."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    except (RuntimeError, ValueError):
        pass
    for rank, world in (("RANK", "WORLD_SIZE"), ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")):
        if os.environ.get(rank, "").isdigit():
            return int(os.environ[rank]), int(os.environ.get(world, "1") or 1)
    return 0, 1
