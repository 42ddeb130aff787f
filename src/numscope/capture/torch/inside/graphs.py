"""Graphs of compiled regions as JSON: Dynamo's, and what Inductor made of it and compiled."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import overrides

from numscope.core.job_files.regions import GraphEntry, NodeEntry, Place, TensorEntry
from numscope.core.json_value import Json

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n\s*(?P<code>[^\n]*)')
_PLAIN_DTYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_KINDS = {torch.dtype: "dtype", torch.device: "device", torch.layout: "layout", torch.memory_format: "memory_format"}


def nodes_of(graph: torch.fx.Graph, places: dict[int, Place] | None = None) -> list[NodeEntry]:
    """Return the nodes of a graph; `places`: the lines of the forward pass by sequence number, for a backward pass."""
    return [_node(node, places or {}) for node in graph.nodes]


def places_of(graph: torch.fx.Graph) -> dict[int, Place]:
    """Return the line that each sequence number of autograd stands for."""
    found: dict[int, Place] = {}
    for node in graph.nodes:
        place, number = _place(node), node.meta.get("seq_nr")
        if place is not None and isinstance(number, int):
            found.setdefault(number, place)
    return found


def lowered(lowering: Any, frame: str, places: dict[int, Place], constants: dict[str, TensorEntry]) -> GraphEntry:
    """Return what Inductor has compiled: its graph, and the node whose value each buffer has."""
    buffers: dict[str, str] = {}
    left = [buffer for group in lowering.scheduler.nodes for buffer in group.get_outputs()]
    written_again = {name for buffer in left for name in buffer.get_mutations()}  # its first writer leaves a part of it
    for buffer in left:
        if buffer.get_name() not in written_again and not buffer.get_mutations():
            node = buffer.node.get_origin_node() if buffer.node is not None else None
            if node is not None:
                buffers[buffer.get_name()] = node.name
    kind = "inference" if lowering.is_inference else "backward" if lowering.is_backward else "forward"
    return GraphEntry(
        key=lowering.cache_key,
        frame=frame,
        kind=kind,
        nodes=nodes_of(lowering.module.graph, places),
        traced=[],
        buffers=buffers,
        constants=constants,
    )


def _node(node: torch.fx.Node, places: dict[int, Place]) -> NodeEntry:
    value = node.meta.get("val", node.meta.get("example_value"))
    tensor = value if isinstance(value, torch.Tensor) else None
    place = _place(node) or places.get(node.meta.get("seq_nr", -1))
    return NodeEntry(
        name=node.name,
        op=node.op,
        target=_target(node),
        args=_plain(node.args),
        kwargs=_plain(node.kwargs),
        place=place,
        module=_module(node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")),
        original=str(node.meta.get("original_aten", "")),
        origin=_origin(node.meta.get("from_node")),
        dtype=str(tensor.dtype).removeprefix("torch.") if tensor is not None else "",
        shape=_shape(tensor) if tensor is not None else None,
    )


def _shape(value: torch.Tensor) -> list[int] | None:
    return [int(size) for size in value.shape] if all(isinstance(size, int) for size in value.shape) else None


def _target(node: torch.fx.Node) -> str:
    target: Any = node.target
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return f"ops.{target}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"ops.{target}.default"
    module = getattr(target, "__module__", "") or ""
    if module in ("_operator", "builtins"):
        return f"{module.removeprefix('_')}.{target.__name__}"
    return overrides.resolve_name(target) or f"{module}.{getattr(target, '__qualname__', type(target).__name__)}"


def _place(node: torch.fx.Node) -> Place | None:
    """Return the innermost line of a node's stack that is not torch's."""
    from numscope.capture.sites import is_user

    for found in reversed(list(_FRAME.finditer(node.meta.get("stack_trace") or ""))):
        if is_user(found["file"]):
            return Place(file=found["file"], line=int(found["line"]), function=found["function"], code=found["code"])
    return None


def _module(stack: Any) -> str:
    """Return the path of the innermost module that a node was called in: of `L['self']._modules['blocks']._modules['0']`."""
    if not stack:
        return ""
    path = next(reversed(list(stack.values())))[0]
    words = re.findall(r"\w+", re.sub(r"^L\['\w+'\]", "", path))
    return ".".join(word for word in words if word not in ("_modules", "_orig_mod"))


def _origin(sources: Iterable[Any] | None) -> str:
    """Return the name of the node in Dynamo's graph that a node comes from."""
    source = next(iter(sources or ()), None)
    while source is not None and getattr(source, "from_node", None):
        source = source.from_node[0]
    return str(getattr(source, "name", ""))


def _plain(value: Any) -> Json:
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[no-any-return]
    if isinstance(value, tuple):
        return {"tuple": [_plain(item) for item in value]}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {"items": {str(key): _plain(item) for key, item in value.items()}}
    if isinstance(value, slice):
        return {"slice": [_plain(value.start), _plain(value.stop), _plain(value.step)]}
    if value is ...:
        return {"ellipsis": True}
    if isinstance(value, _PLAIN_DTYPES):
        return {_KINDS[type(value)]: str(value).removeprefix("torch.")}
    return {"not": type(value).__name__}
