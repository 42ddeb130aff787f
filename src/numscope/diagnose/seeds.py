"""Seeds every random-number generator of the job, and makes the frameworks deterministic.

    ns.seed_all(1234, deterministic=True)

Only packages that the job has already imported are seeded; none is imported. Torch's CUDA generators are seeded even
before CUDA is first used.
"""

from __future__ import annotations

import os
import random
import sys
from types import ModuleType


def seed_all(seed: int = 1234, deterministic: bool = True) -> None:
    """Seed Python, numpy, torch (all devices) and paddle; with `deterministic`, forbid nondeterministic kernels."""
    random.seed(seed)
    # For child processes only: this process drew its hash seed when it started.
    os.environ["PYTHONHASHSEED"] = str(seed % 2**32)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        _torch(torch, seed, deterministic)
    if (paddle := sys.modules.get("paddle")) is not None:
        paddle.seed(seed)
        if deterministic:
            _paddle_flags(paddle)


def _torch(torch: ModuleType, seed: int, deterministic: bool) -> None:
    torch.manual_seed(seed)  # the CPU's, and those of CUDA, MPS, XPU and registered devices
    npu = getattr(torch, "npu", None)
    if npu is not None and hasattr(npu, "manual_seed_all"):
        npu.manual_seed_all(seed)
    if not deterministic:
        return
    # cuBLAS needs a workspace of fixed size to repeat its sums; it reads this when CUDA is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def _paddle_flags(paddle: ModuleType) -> None:
    for flag in ("FLAGS_cudnn_deterministic", "FLAGS_embedding_deterministic"):
        try:
            paddle.set_flags({flag: True})
        except ValueError:  # this build of paddle has no such flag
            continue
