"""Makes a package callable: `ns.capture(...)` works although `numscope.capture` is also a folder."""

from __future__ import annotations

import importlib
import sys
import types

TYPE_CHECKING = False  # importing typing would be most of the cost of this import
if TYPE_CHECKING:
    import inspect


def make_callable(package: str, module: str, function: str) -> None:
    """Make `package` callable: a call is passed on to `module.function`, loaded when first needed."""

    class CallablePackage(types.ModuleType):
        def __call__(self, *args: object, **kwargs: object) -> object:
            return getattr(importlib.import_module(module), function)(*args, **kwargs)

        @property
        def __signature__(self) -> inspect.Signature:  # shown by a notebook for `ns.compare?`
            import inspect

            return inspect.signature(getattr(importlib.import_module(module), function))

    sys.modules[package].__class__ = CallablePackage
