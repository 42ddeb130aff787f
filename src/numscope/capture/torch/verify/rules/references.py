"""References of the user's own: exact results for operators and functions that numscope knows nothing of.

    ns.exact("mylib::swiglu", lambda x, w: torch.nn.functional.silu(x @ w[0]) * (x @ w[1]))

The reference is given the call's own inputs as float64 tensors of the CPU, and returns what the call should have made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from numscope.capture.torch.verify.lens import all_of, is_readable, whole
from numscope.capture.torch.verify.measure import Compared
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Rule, Steps, dtype_of
from numscope.capture.torch.verify.sampling import Sampling
from numscope.core.errors import SettingsError

_MOST = 1 << 24
_REFERENCES: dict[str, Callable[..., Any]] = {}


def exact(function: object, reference: Callable[..., Any]) -> None:
    """Hold the calls of a custom operator against a reference of the user's own, under `verify`."""
    if not callable(reference):
        raise SettingsError(f"reference={reference!r}: give a function of the operator's arguments, in float64")
    _REFERENCES[_name_of(function)] = reference


def _name_of(function: object) -> str:
    if isinstance(function, str) and "::" in function:
        return function.partition(".")[0]
    for name in ("_schema", "_qualified_op_name", "_qualname"):
        found = getattr(function, name, None)
        if found is not None:
            return str(getattr(found, "name", found)).partition(".")[0]
    raise SettingsError(
        f"{function!r} is no operator: give torch.ops.lib.name, what torch.library.custom_op returns, or 'lib::name'"
    )


def reference_of(func: OpOverload, name: str) -> Rule | None:
    """Return the rule that a user's reference makes, or None where there is none for this operator."""
    reference = _REFERENCES.get(func._schema.name)
    if reference is None:
        return None

    def steps(call: OperatorCall, sampling: Sampling) -> Steps:
        tensors = [value for value in call.given.values() if isinstance(value, torch.Tensor)]
        outs = [one for one in call.made if isinstance(one, torch.Tensor)]
        if any(not is_readable(one) for one in (*tensors, *outs)):
            raise NotVerifiedError("a tensor in a layout of its own")
        if sum(one.numel() for one in (*tensors, *outs)) > _MOST:
            raise NotVerifiedError("more than 16 million elements for a reference")
        values = iter((yield [all_of(one) for one in tensors]))
        got = yield [all_of(one) for one in outs]
        given = {
            key: torch.from_numpy(np.ascontiguousarray(next(values))) if isinstance(value, torch.Tensor) else value
            for key, value in call.given.items()
        }
        result = reference(*given.values())
        made = result if isinstance(result, (tuple, list)) else (result,)
        if len(made) != len(outs):
            raise NotVerifiedError(f"its reference makes {len(made)} tensors, not {len(outs)}")
        parts = []
        for slot, (found, right, out) in enumerate(zip(got, made, outs)):
            value = right.detach().double().numpy()
            usual = float(np.sqrt(np.mean(np.square(value)))) if value.size else 0.0
            scale = np.abs(value) + usual
            parts.append(
                Compared(found, value, scale, dtype_of(out), whole(out), tuple(out.shape), True, True, slot=slot)
            )
        return parts

    return steps
