"""torch_npu.hooks' functions and files.

from numscope.compat.torch_npu_hooks import set_dump_path, seed_all, register_hook, wrap_acc_cmp_hook
from numscope.compat.torch_npu_hooks.tools import compare

register_hook(model, wrap_acc_cmp_hook)
set_dump_path("./cpu_module_op.pkl")
model(x).sum().backward()
"""

from __future__ import annotations

from numscope.compat.torch_npu_hooks.hooks import (
    register_hook,
    set_dump_path,
    wrap_acc_cmp_hook,
    wrap_async_datadump_hook,
    wrap_checkoverflow_hook,
)
from numscope.compat.torch_npu_hooks.schedules import schedule, step_schedule
from numscope.diagnose.seeds import seed_all

__all__ = [
    "register_hook",
    "schedule",
    "seed_all",
    "set_dump_path",
    "step_schedule",
    "wrap_acc_cmp_hook",
    "wrap_async_datadump_hook",
    "wrap_checkoverflow_hook",
]
