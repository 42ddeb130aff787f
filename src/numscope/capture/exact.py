"""References of the user's own, for operators that numscope knows nothing of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def exact(function: object, reference: Callable[..., Any]) -> None:
    """Hold the calls of a custom operator against a reference, under `verify`.

    `function` is `torch.ops.lib.name`, what `torch.library.custom_op` returns, or "lib::name". The reference is given the
    call's arguments, tensors as float64 of the CPU, and returns what the call should have made.
    """
    from numscope.capture.torch.verify.rules.references import exact as add

    add(function, reference)
