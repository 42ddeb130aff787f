"""numscope: the first operator at which two runs of a model stop agreeing, and why.

    import numscope as ns

    with ns.capture("runs/gpu", model) as cap:
        for batch in loader:
            train_step(batch)
            cap.step()

    print(ns.compare("runs/npu", "runs/gpu").report.origin)

Importing numscope loads no framework and little else: each name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "capture": "numscope.capture.session",
    "open_run": "numscope.store.reader",
    "compare": "numscope.compare.comparison",
    "NumscopeError": "numscope.core.errors",
    "SettingsError": "numscope.core.errors",
    "RunError": "numscope.core.errors",
    "NotKeptError": "numscope.core.errors",
    "CaptureError": "numscope.core.errors",
    "MissingExtraError": "numscope.core.errors",
    "ComparisonError": "numscope.core.errors",
    "NonFiniteError": "numscope.core.errors",
}

__all__ = [*_WHERE, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'numscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    pass
