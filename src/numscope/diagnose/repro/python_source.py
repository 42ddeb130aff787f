"""A subgraph as Python source, forward and backward: the body of a function in a repro."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from numscope.diagnose.recorded.invocation import CannotReplay, Invocation, TensorRef
from numscope.diagnose.recorded.step_graph import RecordedCall, StepGraph
from numscope.diagnose.recorded.subgraph import Subgraph
from numscope.diagnose.replay.calls import forward_slot, writes

Edits = Mapping[int, Invocation | None]
Path = list[int | str]  # the keys that lead to a tensor in a call's result, as source

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


def source_of(subgraph: Subgraph, names: Mapping[int, str], edits: Edits) -> str:
    """Return a subgraph as the body of a function; `names` are the inputs'."""
    lines: list[str] = []
    known = dict(names)
    graph = subgraph.graph
    for call, recorded in zip(subgraph.calls, subgraph.invocations().values()):
        made = edits.get(call.order) or recorded
        result = f"r{call.order}"
        if call.is_gradient:
            expression, outputs = _backward(graph, call, made, known)
        else:
            expression, outputs = _expression(graph, call, made, known), _outputs(graph, call)
        cast = _autocast(graph, call, made)
        lines += [f'    with torch.autocast("cpu", {cast}):'] if cast else []
        lines.append(f"    {'    ' * bool(cast)}{result} = {expression}  # {call.name}")
        known.update({number: result + "".join(f"[{part}]" for part in path) for number, path in outputs.items()})
    lines.append(f"    return {known[subgraph.output]}")
    return "\n".join(lines) + "\n"


def _outputs(graph: StepGraph, call: RecordedCall) -> dict[int, Path]:
    """Return where in a call's result each of its outputs is."""
    outputs = graph.outputs(call.order)
    return {number: _path(slot, outputs) for slot, number in outputs.items()}


def _path(slot: str, outputs: Mapping[str, int]) -> Path:
    """Return where in a call's result a slot is; empty for a single tensor, which is the result."""
    return [] if set(outputs) == {"output.0"} else [_key(part) for part in slot.split(".")[1:]]


def _key(text: str) -> int | str:
    return int(text) if text.isdecimal() else repr(text)


def _backward(
    graph: StepGraph, call: RecordedCall, made: Invocation, known: Mapping[int, str]
) -> tuple[str, dict[int, Path]]:
    """Return a backward call as an expression, and where in its result each gradient is."""
    assert call.forward is not None  # a subgraph has no others
    forward = graph.calls[call.forward]
    slots = {s: n for s, n in graph.slots(forward.order, "input", "kwargs").items() if n is not None}
    numbers = [n for n in dict.fromkeys(slots.values()) if getattr(torch, graph.tensors[n].dtype).is_floating_point]
    inner = {**known, **{n: f"t{index}" for index, n in enumerate(numbers)}}
    function = f"lambda {', '.join(inner[n] for n in numbers)}: {_expression(graph, forward, made, inner)}"
    outputs = graph.outputs(forward.order)
    incoming = []
    for slot, number in graph.slots(call.order, "input").items():
        output = "output" + slot.removeprefix("input")
        if number is not None and output in outputs:
            incoming.append(f"({_tuple(_path(output, outputs))}, {known[number]})")
    if not incoming:
        raise CannotReplay("no gradient that comes in was recorded")
    gradients: dict[int, Path] = {}
    for slot, number in graph.outputs(call.order).items():
        source = slots.get(forward_slot(slot))
        if source in numbers:
            gradients[number] = [numbers.index(source)]
    tensors = ", ".join(known[n] for n in numbers)
    return f"gradients({function}, [{tensors}], [{', '.join(incoming)}])", gradients


def _tuple(path: Path) -> str:
    return "(" + "".join(f"{part}, " for part in path) + ")"


def _expression(graph: StepGraph, call: RecordedCall, made: Invocation, known: Mapping[int, str]) -> str:
    prefix, op = made.call.prefix, made.call.op
    values = list(made.args)
    if op == "__getitem__" and (index := _list_index(graph, call, made)) is not None:
        values = [*values[:1], index]
    args = [_value(value, known) for value in values]
    if op == "__setitem__":
        args += [f"{name}={_value(value, known)}" for name, value in made.kwargs.items()]
        return f"written(torch.Tensor.__setitem__, {', '.join(args)})"
    if writes(made):
        args = [f"{arg}.clone()" if isinstance(value, TensorRef) else arg for arg, value in zip(args, values)]
    args += [f"{name}={_value(value, known)}" for name, value in made.kwargs.items()]
    for home, namespace in _HOMES.get(prefix, ()):
        if callable(getattr(namespace, op, None)):
            return f"{home}.{op}({', '.join(args)})"
    if prefix == "Tensor":  # an attribute, such as x.mT
        return f"{args[0]}.{op}"
    if prefix == "Ops":
        return f"torch.ops.{op}({', '.join(args)})"
    raise CannotReplay(f"{made.call.head} can't be written as Python")


def _list_index(graph: StepGraph, call: RecordedCall, made: Invocation) -> list[object] | None:
    """Return an index that was a list: x[1, 0] and x[[1, 0]] are recorded alike, but the shapes of the results differ."""
    if len(made.args) != 2:
        return None
    given, index = made.args
    if not (isinstance(index, tuple) and index and all(type(item) is int for item in index)):
        return None
    outputs = graph.outputs(call.order)
    if not isinstance(given, TensorRef) or not outputs:
        return None
    made_shape = graph.tensors[next(iter(outputs.values()))].shape
    is_list = len(made_shape) != len(graph.tensors[given.number].shape) - len(index)
    return list(index) if is_list else None


def _autocast(graph: StepGraph, call: RecordedCall, made: Invocation) -> str | None:
    """Return the dtype of the autocast that a call ran under, if its result shows one."""
    narrow = [graph.tensors[n].dtype for n in graph.outputs(call.order).values()]
    narrow = [dtype for dtype in narrow if dtype in ("bfloat16", "float16")]
    values = (*made.args, *made.kwargs.values())
    asked = any(isinstance(value, torch.dtype) for value in values)
    casts = made.call.op in ("to", "float", "double", "half", "bfloat16", "type_as")
    is_wide = any(isinstance(v, TensorRef) and graph.tensors[v.number].dtype == "float32" for v in values)
    return f"torch.{narrow[0]}" if narrow and is_wide and not asked and not casts else None


def _value(value: object, known: Mapping[int, str]) -> str:
    if isinstance(value, TensorRef):
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
