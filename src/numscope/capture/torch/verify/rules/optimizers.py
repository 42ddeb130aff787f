"""Operators over lists of tensors: the fused and the foreach forms of optimizers, sampled in some of the tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from numscope.capture.torch.verify.lens import Array, Read, all_of
from numscope.capture.torch.verify.measure import Compared
from numscope.capture.torch.verify.rules.registry import (
    NotVerifiedError,
    OperatorCall,
    Rule,
    Steps,
    dtype_of,
    rule,
    rule_of,
    together,
)
from numscope.capture.torch.verify.rules.rows import check
from numscope.capture.torch.verify.sampling import Sampling

_TENSORS = 4  # of a list
_PREFIX = "_foreach_"


def foreach(name: str) -> Rule | None:
    """Return the rule of an operator over lists: that of the operator itself, for some of the tensors."""
    inner = rule_of({"norm": "norm"}.get(name[len(_PREFIX) :], name[len(_PREFIX) :]))
    if not name.startswith(_PREFIX) or inner is None or inner.inputs != 1:
        return None
    function = inner.rule
    single = name[len(_PREFIX) :]
    names = {**_NAMES, "scalars": "value"} if single in ("addcmul", "addcdiv") else _NAMES

    def steps(call: OperatorCall, sampling: Sampling) -> Steps:
        count = len(call.made)
        chosen = sampling.range(count, count if sampling.full else _TENSORS).places.tolist()
        calls = []
        for number in chosen:
            given = {names.get(key, key): _item(value, number, count) for key, value in call.given.items()}
            if isinstance(given.get("value"), torch.Tensor):
                raise NotVerifiedError("its factors are in a tensor")
            for key, value in _DEFAULTS.get(single, {}).items():
                given.setdefault(key, value)
            one = OperatorCall(single, call.overload, given, [call.made[number]], call.in_place)
            calls.append(function(one, sampling))
        parts = yield from together(calls)
        return [part._replace(slot=chosen[part.slot]) for part in parts]

    return steps


_NAMES = {
    "tensors": "self",
    "tensors1": "end",
    "other": "other",
    "scalar": "other",
    "scalars": "other",
    "ord": "p",
    "exponent": "exponent",
    "weights": "weight",
}
_DEFAULTS: dict[str, dict[str, Any]] = {"addcmul": {"value": 1}, "addcdiv": {"value": 1}, "norm": {"dim": None}}


def _item(value: object, number: int, count: int) -> Any:
    if isinstance(value, (list, tuple)) and len(value) == count:
        return value[number]
    return value


def _sampled(tensors: list[torch.Tensor], sampling: Sampling) -> list[int]:
    chosen: list[int] = sampling.range(len(tensors), len(tensors) if sampling.full else _TENSORS).places.tolist()
    return chosen


@rule("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad")
def _fused(call: OperatorCall, sampling: Sampling) -> Steps:
    lists = [name for name in _LISTS[call.name] if call[name]]
    if call.name == "_fused_adagrad" or (call.get("grad_scale") is not None):
        raise NotVerifiedError("a fused step of this form")
    parameters = call["self"]
    chosen = _sampled(parameters, sampling)
    boxes = {number: sampling.boxes(parameters[number].shape)[0] for number in chosen}
    for number in chosen:
        check(*(call[name][number] for name in lists))
    stop = call.get("found_inf")
    flags = [call["lr"]] if isinstance(call["lr"], torch.Tensor) else []
    flags += [stop] if isinstance(stop, torch.Tensor) else []
    steps = call.get("state_steps") or []
    reads = [Read(call[name][number], boxes[number]) for number in chosen for name in lists]
    reads += [all_of(steps[number]) for number in chosen] if steps else []
    values = iter((yield [*reads, *map(all_of, flags)]))
    before = [{name: next(values) for name in lists} for _ in chosen]
    ages = [float(np.asarray(next(values)).reshape(())) for _ in chosen] if steps else [1.0] * len(chosen)
    lr = float(np.asarray(next(values)).reshape(())) if isinstance(call["lr"], torch.Tensor) else call["lr"]
    stopped = isinstance(stop, torch.Tensor) and bool(np.asarray(next(values)).reshape(()))
    written = [name for name in lists if name != "grads"]
    got = iter((yield [Read(call[name][number], boxes[number]) for number in chosen for name in written]))
    parts: list[Compared] = []
    for number, state, age in zip(chosen, before, ages):
        with np.errstate(all="ignore"):
            made = _adam(call, state, age, lr) if "adam" in call.name else _sgd(call, state, lr)
        for name in written:
            found = next(got)
            exact, scale = made[name]
            if stopped:
                exact, scale = state[name], 0.0
            tensor = call[name][number]
            parts.append(
                Compared(found, exact, scale, dtype_of(tensor), boxes[number], tuple(tensor.shape), True, slot=number)
            )
    return parts


_LISTS = {
    "_fused_adam": ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
    "_fused_adamw": ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
    "_fused_sgd": ("self", "grads", "momentum_buffer_list"),
    "_fused_adagrad": ("self", "grads", "state_sums"),
}


def _adam(call: OperatorCall, state: dict[str, Array], age: float, lr: float) -> dict[str, tuple[Any, Any]]:
    """Do a step of Adam; each result with the size of what it is made of. The step count was raised before."""
    p, g = state["self"], state["grads"]
    g = -g if call["maximize"] else g
    decay, b1, b2 = call["weight_decay"], call["beta1"], call["beta2"]
    if call.name == "_fused_adamw":
        p = p * (1 - lr * decay)
    elif decay:
        g = g + decay * p
    m = state["exp_avgs"] + (1 - b1) * (g - state["exp_avgs"])
    v = b2 * state["exp_avg_sqs"] + (1 - b2) * g * g
    made = {
        "exp_avgs": (m, np.abs(state["exp_avgs"]) + np.abs(g)),
        "exp_avg_sqs": (v, v),
    }
    of = v
    if "max_exp_avg_sqs" in state:
        of = np.maximum(state["max_exp_avg_sqs"], v)
        made["max_exp_avg_sqs"] = (of, of)
    root = np.sqrt(of) / math.sqrt(1 - b2**age) + call["eps"]
    step = lr / (1 - b1**age) * m / root
    size = lr / (1 - b1**age) * (np.abs(state["exp_avgs"]) + np.abs(g)) / root
    # 1 - βⁿ in float32 has lost digits at first: β itself is rounded.
    lost = 1 / max(1 - b2**age, 1e-8) + 1 / max(1 - b1**age, 1e-8)
    made["self"] = (p - step, np.abs(p) + size * (2 + lost))
    return made


def _sgd(call: OperatorCall, state: dict[str, Array], lr: float) -> dict[str, tuple[Any, Any]]:
    """Do a step of gradient descent."""
    p, g = state["self"], state["grads"]
    g = -g if call["maximize"] else g
    decay, momentum = call["weight_decay"], call["momentum"]
    size = np.abs(g) + abs(decay) * np.abs(p)
    g = g + decay * p
    made: dict[str, tuple[Any, Any]] = {}
    if momentum and "momentum_buffer_list" in state:
        buffer = state["momentum_buffer_list"]
        moved = g if call["is_first_step"] else momentum * buffer + (1 - call["dampening"]) * g
        size = size if call["is_first_step"] else size + np.abs(momentum * buffer)
        made["momentum_buffer_list"] = (moved, size)
        g = g + momentum * moved if call["nesterov"] else moved
        size = size * (1 + abs(momentum))
    made["self"] = (p - lr * g, np.abs(p) + lr * size)
    return made
