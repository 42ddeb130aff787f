"""References of the user's own: exact results for operators and functions that numscope knows nothing of.

    ns.exact("mylib::swiglu", lambda x, w: torch.nn.functional.silu(x @ w[0]) * (x @ w[1]))
    ns.exact(FlashAttention, lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v)     # an autograd.Function
    swiglu = ns.exact(swiglu, lambda x, w: …)                                     # a function: the result is held

The reference is given the call's own inputs as float64 tensors of the CPU, and returns what the call should have made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from numscope.capture.torch.verify.lens import Array, all_of, is_readable, whole
from numscope.capture.torch.verify.measure import Compared
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Rule, Steps, dtype_of
from numscope.capture.torch.verify.sampling import Sampling
from numscope.core.errors import SettingsError

_MOST = 1 << 24
_REFERENCES: dict[str, Callable[..., Any]] = {}
Prepare: TypeAlias = Callable[[Sequence[Array]], Sequence[torch.Tensor]]  # the inputs' elements -> what is exact


def exact(function: Any, reference: Callable[..., Any]) -> Any:
    """Hold the calls of a custom operator, an autograd.Function or a function against a reference, under `verify`."""
    if not callable(reference):
        raise SettingsError(f"reference={reference!r}: give a function of the operator's arguments, in float64")
    name = _name_of(function)
    if name:
        _REFERENCES[name] = reference
        return function
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        function.apply = staticmethod(held(function.apply, reference, function.__qualname__))  # type: ignore[method-assign]
        return function
    if isinstance(function, type) or not callable(function):
        raise SettingsError(
            f"{function!r} is no operator: give torch.ops.lib.name, what torch.library.custom_op returns, 'lib::name', "
            "an autograd.Function or a function"
        )
    return held(function, reference, getattr(function, "__qualname__", type(function).__name__))


def _name_of(function: object) -> str:
    """Return the name of an operator; empty of anything else."""
    if isinstance(function, str):
        return function.partition(".")[0] if "::" in function else ""
    for name in ("_schema", "_qualified_op_name", "_qualname"):
        found = getattr(function, name, None)
        if found is not None:
            return str(getattr(found, "name", found)).partition(".")[0]
    return ""


class Holder(Protocol):
    """Holds calls of functions while a job runs: a capture's verifier."""

    def hold(self, name: str, given: Sequence[torch.Tensor], prepare: Prepare) -> Callable[[object], None] | None:
        """Read what a call is given; return what is told its result, or None where this call is not held."""


HOLDERS: WeakSet[Any] = WeakSet()


def held(function: Callable[..., Any], reference: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that does the same, and is held against its reference where a verifier runs."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        ends = []
        if HOLDERS:
            leaves, form = tree_flatten((args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

            def prepare(values: Sequence[Array]) -> Sequence[torch.Tensor]:
                left = iter(values)
                exact_leaves = [_tensor(next(left)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
                own_args, own_kwargs = tree_unflatten(exact_leaves, form)
                return [one for one in tree_leaves(reference(*own_args, **own_kwargs)) if isinstance(one, torch.Tensor)]

            ends = [end for holder in list(HOLDERS) if (end := holder.hold(name, tensors, prepare)) is not None]
        result = function(*args, **kwargs)
        for end in ends:
            end(result)
        return result

    return call


def _tensor(values: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def check_readable(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse tensors whose elements cannot be read, or are too many."""
    if any(not is_readable(one) for one in tensors):
        raise NotVerifiedError("a tensor in a layout of its own")
    if sum(one.numel() for one in tensors) > _MOST:
        raise NotVerifiedError("more than 16 million elements for a reference")


def beside(outs: Sequence[torch.Tensor], got: Sequence[Array], made: Sequence[torch.Tensor]) -> list[Compared]:
    """Return what a call has made beside what its reference makes."""
    if len(made) != len(outs):
        raise NotVerifiedError(f"its reference makes {len(made)} tensors, not {len(outs)}")
    parts = []
    for slot, (found, right, out) in enumerate(zip(got, made, outs)):
        value = right.detach().double().numpy()
        if value.shape != found.shape:
            raise NotVerifiedError(f"its reference makes the shape {list(value.shape)}, not {list(found.shape)}")
        usual = float(np.sqrt(np.mean(np.square(value)))) if value.size else 0.0
        scale = np.abs(value) + usual
        parts.append(Compared(found, value, scale, dtype_of(out), whole(out), tuple(out.shape), True, True, slot=slot))
    return parts


def reference_of(func: OpOverload, name: str) -> Rule | None:
    """Return the rule that a user's reference makes, or None where there is none for this operator."""
    reference = _REFERENCES.get(func._schema.name)
    if reference is None:
        return None

    def steps(call: OperatorCall, sampling: Sampling) -> Steps:
        tensors = [value for value in call.given.values() if isinstance(value, torch.Tensor)]
        outs = [one for one in call.made if isinstance(one, torch.Tensor)]
        check_readable((*tensors, *outs))
        values = iter((yield [all_of(one) for one in tensors]))
        got = yield [all_of(one) for one in outs]
        given = [_tensor(next(values)) if isinstance(one, torch.Tensor) else one for one in call.given.values()]
        result = reference(*given)
        return beside(outs, got, list(result) if isinstance(result, (tuple, list)) else [result])

    return steps
