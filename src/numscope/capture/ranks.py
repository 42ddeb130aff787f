"""Which rank of how many this process is, from what the job itself says; no framework is imported to find out."""

from __future__ import annotations

import os
import sys
from typing import Any

_JOB, _FIRST = "NUMSCOPE_RUN", "NUMSCOPE_PID"  # of `numscope run`: the order, and the process that runs the script
_SPAWN = "torch.multiprocessing.spawn"
_POOLS = ("multiprocessing.pool", "concurrent.futures.process")  # their workers do bits of another process's work


def current() -> tuple[int, int]:
    """Return (rank, world size) of this process; of workers without a process group the size is what is known of it."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    except (RuntimeError, ValueError):
        pass
    for rank, world in (("RANK", "WORLD_SIZE"), ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")):
        if os.environ.get(rank, "").isdigit():
            return int(os.environ[rank]), int(os.environ.get(world, "1") or 1)
    worker = _of_worker()
    return worker, worker + 1


def is_first() -> bool:
    """Tell whether this process runs the script that `numscope run` was given."""
    return os.environ.get(_FIRST) == str(os.getpid())


def _of_worker() -> int:
    """Return the number of a worker that multiprocessing has started, 0 for any other process.

    `torch.multiprocessing.spawn` numbers its own. Other processes of a captured script are numbered in the order in which
    they were started; elsewhere they may be jobs of their own, one after the other.
    """
    processes = sys.modules.get("multiprocessing.process")
    process: Any = processes.current_process() if processes is not None else None
    module = getattr(getattr(process, "_target", None), "__module__", "")
    arguments: tuple[Any, ...] = getattr(process, "_args", None) or ()
    if module == _SPAWN and len(arguments) > 1 and isinstance(arguments[1], int):
        return arguments[1]
    identity: tuple[int, ...] = getattr(process, "_identity", ())
    if _JOB in os.environ and not is_first() and len(identity) == 1 and module not in _POOLS:
        return identity[0] - 1
    return 0
