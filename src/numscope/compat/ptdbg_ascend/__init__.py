"""ptdbg_ascend's functions and files.

    from numscope.compat.ptdbg_ascend import *

    seed_all()
    set_dump_path("./npu_dump.pkl")
    register_hook(model, acc_cmp_dump, dump_step=2)
    set_dump_switch("ON")
    …
    set_dump_switch("OFF")

writes `npu_dump.pkl`, JSON lines of name, dtype, shape and statistics, and the folder `npu_dump_{time}` of .npy files.
"""

from __future__ import annotations

from numscope.compat.ptdbg_ascend.comparing import compare, compare_distributed
from numscope.compat.ptdbg_ascend.dump import (
    acc_cmp_dump,
    overflow_check,
    register_hook,
    set_dump_path,
    set_dump_switch,
)
from numscope.compat.ptdbg_ascend.parsing import parse
from numscope.diagnose.seeds import seed_all

__all__ = [
    "acc_cmp_dump",
    "compare",
    "compare_distributed",
    "overflow_check",
    "parse",
    "register_hook",
    "seed_all",
    "set_dump_path",
    "set_dump_switch",
]
