"""hooktools' Tracer and Comparer, and its page.

    from numscope.compat.hooktools import Tracer

    trace = Tracer("./tracer_demo.yaml", model)
    for step, batch in enumerate(loader):
        trace.trace(epoch=0, step=step)
        …
        trace.untrace()

writes one .pt file per module call; `python -m numscope.compat.hooktools.compare_url` compares two such folders.
The settings files to start from are in `config/` beside this file.
"""

from __future__ import annotations

from numscope.compat.hooktools.comparer import Comparer
from numscope.compat.hooktools.tracer import Tracer

__all__ = ["Comparer", "Tracer"]
