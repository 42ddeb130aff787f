"""A group's calls as Python source, forward and backward: what a repro is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from numscope.diagnose.recorded.group import Group
from numscope.diagnose.recorded.invocation import CannotReplay, Given, Invocation
from numscope.diagnose.recorded.step_graph import Call
from numscope.diagnose.replay.calls import writes

Edits = Mapping[int, Invocation | None]

_HOMES = {
    "Functional": (("torch.nn.functional", torch.nn.functional), ("torch._C._nn", torch._C._nn)),
    "Torch": (
        ("torch", torch),
        ("torch.nn.init", torch.nn.init),
        ("torch._C._VariableFunctions", torch._C._VariableFunctions),
    ),
    "Tensor": (("torch.Tensor", torch.Tensor),),
    "Linalg": (("torch.linalg", torch.linalg),),
    "Fft": (("torch.fft", torch.fft),),
    "Special": (("torch.special", torch.special),),
    "Sparse": (("torch.sparse", torch.sparse),),
    "VF": (("torch._C._VariableFunctions", torch._C._VariableFunctions),),
    "Aten": (("torch.ops.aten", torch.ops.aten),),
}

GRADIENTS = '''

def gradients(function, tensors, incoming):
    """Return the gradients of the tensors, for those that come into the function's outputs."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    with torch.enable_grad():
        result = function(*(leaf.clone() for leaf in leaves))
        outputs = []
        for path, gradient in incoming:
            output = result
            for part in path:
                output = output[part]
            outputs.append((output, gradient.to(output.dtype)))
        made, given = zip(*outputs)
        return torch.autograd.grad(made, leaves, given, allow_unused=True)
'''
WRITTEN = '''

def written(function, tensor, *args, **kwargs):
    """Return a copy of the tensor that the function has written to."""
    copy = tensor.clone()
    function(copy, *args, **kwargs)
    return copy
'''


def code(group: Group, names: Mapping[int, str], edits: Edits) -> str:
    """Return a group's calls as the body of a function; `names` are the inputs'."""
    lines: list[str] = []
    known = dict(names)
    for call, recorded in zip(group.calls, group.invocations().values()):
        made = edits.get(call.order) or recorded
        result = f"r{call.order}"
        if call.is_gradient:
            expression, outputs = _backward(group, call, made, known)
        else:
            expression, outputs = _expression(group, call, made, known), _outputs(group, call)
        cast = _autocast(group, call, made)
        lines += [f'    with torch.autocast("cpu", {cast}):'] if cast else []
        lines.append(f"    {'    ' * bool(cast)}{result} = {expression}  # {call.name}")
        known.update({number: result + "".join(f"[{part}]" for part in path) for number, path in outputs.items()})
    lines.append(f"    return {known[group.output]}")
    return "\n".join(lines) + "\n"


def _outputs(group: Group, call: Call) -> dict[int, list[Any]]:
    """Return where in a call's result each of its outputs is."""
    outputs = group.record.outputs(call.order)
    if set(outputs) == {"output.0"}:
        return {outputs["output.0"]: []}
    return {number: [_part(p) for p in slot.split(".")[1:]] for slot, number in outputs.items()}


def _part(text: str) -> Any:
    return int(text) if text.isdigit() else repr(text)


def _backward(group: Group, call: Call, made: Invocation, known: dict[int, str]) -> tuple[str, dict[int, list[Any]]]:
    """Return a backward call as an expression, and where in its result each gradient is."""
    record = group.record
    assert call.forward is not None  # a group has no others
    forward = record.calls[call.forward]
    slots = {s: n for s, n in record.slots(forward.order, "input", "kwargs").items() if n is not None}
    numbers = [n for n in dict.fromkeys(slots.values()) if getattr(torch, record.tensors[n].dtype).is_floating_point]
    inner = {**known, **{n: f"t{place}" for place, n in enumerate(numbers)}}
    function = f"lambda {', '.join(inner[n] for n in numbers)}: {_expression(group, forward, made, inner)}"
    places = _forward_paths(group, forward)
    incoming = []
    for slot, number in record.slots(call.order, "input").items():
        path = places.get("output" + slot.removeprefix("input"))
        if number is not None and path is not None:
            incoming.append(f"({_tuple(path)}, {known[number]})")
    if not incoming:
        raise CannotReplay("no gradient that comes in was recorded")
    outputs: dict[int, list[Any]] = {}
    for slot, number in record.outputs(call.order).items():
        tail = slot.removeprefix("output.")
        source = slots.get(tail if tail.startswith("kwargs.") else f"input.{tail}")
        if source in numbers:
            outputs[number] = [numbers.index(source)]
    tensors = ", ".join(known[n] for n in numbers)
    return f"gradients({function}, [{tensors}], [{', '.join(incoming)}])", outputs


def _forward_paths(group: Group, forward: Call) -> dict[str, list[Any]]:
    outputs = group.record.outputs(forward.order)
    single = set(outputs) == {"output.0"}
    return {slot: [] if single else [_part(p) for p in slot.split(".")[1:]] for slot in outputs}


def _tuple(path: list[Any]) -> str:
    return "(" + "".join(f"{part}, " for part in path) + ")"


def _expression(group: Group, call: Call, made: Invocation, known: Mapping[int, str]) -> str:
    prefix, _, op = made.call.head.partition(".")
    args = [_value(value, known) for value in made.args]
    args += [f"{name}={_value(value, known)}" for name, value in made.kwargs.items()]
    if op == "__getitem__" and _is_list_index(group, call, made):
        args[1] = _value(list(made.args[1]), known)
    if op == "__setitem__":
        return f"written(torch.Tensor.__setitem__, {', '.join(args)})"
    if writes(made):
        whole = len(made.args)
        args = [f"{a}.clone()" if i < whole and isinstance(made.args[i], Given) else a for i, a in enumerate(args)]
    for home, namespace in _HOMES.get(prefix, ()):
        if callable(getattr(namespace, op, None)):
            return f"{home}.{op}({', '.join(args)})"
    if prefix == "Tensor":  # an attribute, such as x.mT
        return f"{args[0]}.{op}"
    if prefix == "Ops":
        return f"torch.ops.{op}({', '.join(args)})"
    raise CannotReplay(f"{made.call.head} can't be written as Python")


def _is_list_index(group: Group, call: Call, made: Invocation) -> bool:
    """Tell whether numbers in brackets are a list: x[1, 0] and x[[1, 0]] are recorded alike, but not their shapes."""
    index = made.args[1] if len(made.args) == 2 else None
    if not (isinstance(index, tuple) and index and all(type(item) is int for item in index)):
        return False
    given, outputs = made.args[0], group.record.outputs(call.order)
    if not isinstance(given, Given) or not outputs:
        return False
    made_shape = group.record.tensors[next(iter(outputs.values()))].shape
    return len(made_shape) != len(group.record.tensors[given.number].shape) - len(index)


def _autocast(group: Group, call: Call, made: Invocation) -> str | None:
    """Return the dtype of the autocast under which a call ran, where its result tells that there was one."""
    record = group.record
    narrow = [record.tensors[n].dtype for n in record.outputs(call.order).values()]
    narrow = [dtype for dtype in narrow if dtype in ("bfloat16", "float16")]
    givens = [value for value in (*made.args, *made.kwargs.values()) if isinstance(value, Given)]
    asked = any(isinstance(value, torch.dtype) for value in (*made.args, *made.kwargs.values()))
    casts = made.call.op in ("to", "float", "double", "half", "bfloat16", "type_as")
    is_wide = any(record.tensors[value.number].dtype == "float32" for value in givens)
    return f"torch.{narrow[0]}" if narrow and is_wide and not asked and not casts else None


def _value(value: Any, known: Mapping[int, str]) -> str:
    if isinstance(value, Given):
        return known[value.number]
    if isinstance(value, tuple):
        return "(" + "".join(f"{_value(item, known)}, " for item in value) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item, known) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_value(item, known)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({', '.join(_value(part, known) for part in (value.start, value.stop, value.step))})"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float) and value != value:
        return "float('nan')"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f"float('{value}')"
    return "..." if value is Ellipsis else repr(value)
