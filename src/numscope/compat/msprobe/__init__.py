"""msprobe's PrecisionDebugger and its files.

    from numscope.compat.msprobe import PrecisionDebugger

    debugger = PrecisionDebugger("./config.json", model=model)
    for data, label in loader:
        debugger.start()
        …
        loss.backward()
        debugger.stop()
        debugger.step()

writes `step{N}/rank{R}` with dump.json, stack.json, construct.json and dump_tensor_data, which msprobe's own `compare` and
`graph_visualize` read.
"""

from __future__ import annotations

from numscope.compat.msprobe.debugger import PrecisionDebugger

__all__ = ["PrecisionDebugger"]
