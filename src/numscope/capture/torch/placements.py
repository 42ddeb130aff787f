"""Declared placement of a rank's parameters: cut over which ranks and in which dimension, or the same on all of them.

Nothing is imported for it: a library's marks are on the parameters and modules, or they are not. Megatron and Transformer
Engine mark parameters (`tensor_model_parallel`, `partition_dim`, `sequence_parallel`); DistributedDataParallel has a process
group; FullyShardedDataParallel says which elements of each parameter a rank has. DTensors declare themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from numscope.core.job_files.layout import FORMAT, Layout, Placed, plain

_MARKS = ("tensor_model_parallel", "sequence_parallel", "allreduce", "partition_dim")


def declared_layout(modules: Mapping[str, torch.nn.Module]) -> Layout | None:
    """Return what is declared of the parameters of some modules, by path; None where that is nothing."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    found: dict[str, Placed] = {}
    for path, module in modules.items():
        for name, placed in _declared(path, module):
            found.setdefault(name, placed)
    for path, module in modules.items():
        for name, placed in _replicated(path, module):
            found.setdefault(name, placed)
    return {"format": FORMAT, "parameters": found} if found else None


def _declared(path: str, module: torch.nn.Module) -> Iterator[tuple[str, Placed]]:
    """Yield what the marks on a module's own parameters say."""
    for name, parameter in module._parameters.items():
        marks = getattr(parameter, "__dict__", {}) if parameter is not None else {}
        if any(mark in marks for mark in _MARKS):
            yield _join(path, name), _marked(marks, _ranks(_tensor_group(module)))
    handle = getattr(module, "_handle", None)
    flat = getattr(handle, "flat_param", None)
    if flat is not None:
        yield from _of_flat(path, flat, _ranks(getattr(handle, "process_group", None)))


def _marked(marks: Mapping[str, Any], ranks: list[int]) -> Placed:
    placed: Placed = {"by": "megatron", "axis": "tp", "ranks": ranks}
    dimension = marks.get("partition_dim", -1)
    if marks.get("tensor_model_parallel") and isinstance(dimension, int) and dimension >= 0:
        placed["dimension"] = dimension
        placed["stride"] = int(marks.get("partition_stride", 1))
    elif marks.get("allreduce") is False:
        placed["axis"], placed["ranks"] = "ep", []  # an expert's own: which ranks share it is not said
    return placed


def _tensor_group(module: torch.nn.Module) -> object:
    """Return the process group over which a module's parameters are cut: its own, or Megatron's global one."""
    own = getattr(module, "tp_group", None) or getattr(module, "_tp_group", None)
    if own is not None:
        return own
    state = sys.modules.get("megatron.core.parallel_state")
    group: object = getattr(state, "_TENSOR_MODEL_PARALLEL_GROUP", None)
    return group


def _of_flat(path: str, flat: object, ranks: list[int]) -> Iterator[tuple[str, Placed]]:
    """Yield which elements of each original parameter a rank of FullyShardedDataParallel has."""
    names, shapes = getattr(flat, "_fqns", ()), getattr(flat, "_shapes", ())
    for name, shape, part in zip(names, shapes, getattr(flat, "_shard_param_infos", ())):
        begin, end = getattr(part, "intra_param_start_idx", None), getattr(part, "intra_param_end_idx", None)
        elements = [begin, end + 1] if begin is not None and end is not None else [0, 0]
        placed: Placed = {"shape": list(shape), "flat": elements, "ranks": ranks, "by": "fsdp"}
        yield _join(path, name), placed


def _replicated(path: str, module: torch.nn.Module) -> Iterator[tuple[str, Placed]]:
    """Yield the parameters that DistributedDataParallel keeps equal."""
    if type(module).__name__ != "DistributedDataParallel" or not isinstance(
        module, torch.nn.parallel.DistributedDataParallel
    ):
        return
    ranks = _ranks(module.process_group)
    ignored = getattr(module, "parameters_to_ignore", ())
    for name, parameter in module.module.named_parameters():
        if name not in ignored and type(parameter).__name__ != "DTensor":
            yield _join(path, f"module.{name}"), {"ranks": ranks, "axis": "dp", "by": "ddp"}


def _ranks(group: object) -> list[int]:
    if not isinstance(group, torch.distributed.ProcessGroup):
        return []
    return list(torch.distributed.get_process_group_ranks(group))


def _join(path: str, name: str) -> str:
    return plain(f"{path}.{name}" if path else name)
