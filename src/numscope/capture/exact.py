"""References of the user's own, for operators and functions that numscope knows nothing of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def exact(function: Any, reference: Callable[..., Any]) -> Any:
    """Hold the calls of an operator or a function of your own against a reference, under `verify`; return what to call.

    `function` is `torch.ops.lib.name`, what `torch.library.custom_op` returns, "lib::name", an `autograd.Function`, or a
    function, of which the one that is returned is held. The reference is given the call's arguments, tensors as float64 of
    the CPU, and returns what the call should have made.
    """
    from numscope.capture.torch.verify.rules.references import exact as add

    return add(function, reference)
