"""The rank of this process and the world size, as the job itself tells them; no framework is imported for that."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_JOB, _FIRST = "NUMSCOPE_RUN", "NUMSCOPE_PID"  # set by `numscope run`: the settings, and the process of the script
_SPAWN = "torch.multiprocessing.spawn"
_POOLS = ("multiprocessing.pool", "concurrent.futures.process")  # their workers do parts of another process's work


def current() -> tuple[int, int]:
    """Return (rank, world size) of this process; without a process group, the size counts the workers up to this one."""
    told = _told()
    if told is not None:
        return told
    worker = _of_worker()
    return worker, worker + 1


def is_told() -> bool:
    """Tell whether a process group or the environment says the rank of this process; else it may still change."""
    return _told() is not None


def _told() -> tuple[int, int] | None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    except (RuntimeError, ValueError):
        pass
    for rank, world in (("RANK", "WORLD_SIZE"), ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")):
        if os.environ.get(rank, "").isdecimal():
            return int(os.environ[rank]), int(os.environ.get(world, "1") or 1)
    return None


def is_first() -> bool:
    """Tell whether this process runs the script that `numscope run` was given."""
    return os.environ.get(_FIRST) == str(os.getpid())


def _of_worker() -> int:
    """Return the number of a worker that multiprocessing has started, 0 for any other process.

    `torch.multiprocessing.spawn` numbers its own workers. Other processes of a captured script are numbered in the order
    in which they were started. Outside a captured script they may be separate jobs, one after the other.
    """
    processes = sys.modules.get("multiprocessing.process")
    process: BaseProcess | None = processes.current_process() if processes is not None else None
    module = getattr(getattr(process, "_target", None), "__module__", "")
    if module == _SPAWN:
        _, *arguments = getattr(process, "_args", None) or (None,)  # the function, the rank, …
        if arguments and isinstance(arguments[0], int):
            return arguments[0]
    identity: tuple[int, ...] = getattr(process, "_identity", ())
    if _JOB in os.environ and not is_first() and len(identity) == 1 and module not in _POOLS:
        return identity[0] - 1
    return 0
