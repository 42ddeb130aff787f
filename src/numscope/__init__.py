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

from numscope.core.version import __version__

TYPE_CHECKING = False  # type checkers know this name; importing it from typing would be most of the cost of this import

_WHERE = {
    "open_run": "numscope.store.reader",
    "copy_weights": "numscope.diagnose.weights",
    "compare_models": "numscope.testing.models",
    "graft": "numscope.diagnose.intervene.graft",
    "guard": "numscope.capture.guard",
    "exact": "numscope.capture.exact",
    "seed_all": "numscope.diagnose.seeds",
    "to_cpu": "numscope.diagnose.intervene.reroute",
    "NumscopeError": "numscope.core.errors",
    "SettingsError": "numscope.core.errors",
    "RunError": "numscope.core.errors",
    "NotKeptError": "numscope.core.errors",
    "CaptureError": "numscope.core.errors",
    "MissingExtraError": "numscope.core.errors",
    "ComparisonError": "numscope.core.errors",
    "NonFiniteError": "numscope.core.errors",
    "InexactError": "numscope.core.errors",
}

_PACKAGES = (
    "capture",
    "compare",
    "diagnose",
    "weights",
)  # folders that are called by their own name: core/callable_module.py

__all__ = [*_WHERE, *_PACKAGES, "__version__"]


def __getattr__(name: str) -> object:
    if name in _WHERE:
        value: object = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return importlib.import_module(f"numscope.{name}")
    raise AttributeError(f"module 'numscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from numscope.capture.exact import exact as exact
    from numscope.capture.guard import guard as guard
    from numscope.capture.session import capture as capture
    from numscope.compare.comparison import compare as compare
    from numscope.core.errors import CaptureError as CaptureError
    from numscope.core.errors import ComparisonError as ComparisonError
    from numscope.core.errors import InexactError as InexactError
    from numscope.core.errors import MissingExtraError as MissingExtraError
    from numscope.core.errors import NonFiniteError as NonFiniteError
    from numscope.core.errors import NotKeptError as NotKeptError
    from numscope.core.errors import NumscopeError as NumscopeError
    from numscope.core.errors import RunError as RunError
    from numscope.core.errors import SettingsError as SettingsError
    from numscope.diagnose.diagnosis import diagnose as diagnose
    from numscope.diagnose.intervene.graft import graft as graft
    from numscope.diagnose.intervene.reroute import to_cpu as to_cpu
    from numscope.diagnose.seeds import seed_all as seed_all
    from numscope.diagnose.weights import copy_weights as copy_weights
    from numscope.store.reader import open_run as open_run
    from numscope.testing.models import compare_models as compare_models
    from numscope.weights.comparison import weights as weights
