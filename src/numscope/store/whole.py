"""Puts the pieces of a tensor that the ranks hold together, where a library declared how they lie in the whole one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from numscope.core.dtypes import AnyArray
from numscope.core.job_files.layout import FILE, FORMAT, Layout, Placed, is_cut, plain
from numscope.core.names import parse_call
from numscope.store.rundir import read_document

_SHARD = re.compile(r"(?P<strided>_?)(?:Strided)?S(?:hard)?\((?:dim=)?(?P<dimension>-?\d+)")
_PARTIAL = re.compile(r"P(?:artial)?\((?P<operation>\w*)\)")


def read_layout(folder: Path) -> dict[str, Placed]:
    """Return what a rank's folder declares, by the parameter's name; nothing where it has no such document."""
    document = read_document(folder, FILE)
    known = document is not None and document.get("format") == FORMAT
    return dict(cast(Layout, document)["parameters"]) if known else {}


@dataclass(frozen=True)
class Piece:
    """The part of a tensor that one rank holds."""

    rank: int
    array: AnyArray
    placement: str  # as a DTensor declared it, or ""
    placed: Placed | None  # as another library did


def declares_parts(placement: str, placed: Placed | None) -> bool:
    """Tell whether a tensor is declared to be a part of another."""
    if placement:
        return any(way != "R" for way in json.loads(placement).get("placements", ()))
    return placed is not None and is_cut(placed)


def of_parameter(call: str, slot: str, declared: Mapping[str, Placed]) -> Placed | None:
    """Return what is declared of the parameter that a slot shows, with its gradient, its state and what is made of it."""
    head, _, label = slot.partition(".")
    name = parse_call(call)
    if name is None or head not in ("parameters", "parameters_grad", "output", "state"):
        return None
    if name.prefix == "Module" and head.startswith("parameters"):
        label = f"{name.path}.{label}" if name.path else label
    elif name.prefix != "Optimizer":
        return None
    return declared.get(plain(label)) or (declared.get(plain(label.rpartition(".")[0])) if head == "state" else None)


def whole(pieces: Sequence[Piece]) -> AnyArray | None:
    """Return what the pieces make; None where one that is needed is not among them."""
    first = pieces[0]
    if first.placement:
        return _of_mesh(pieces)
    placed = first.placed or {}
    if "flat" in placed:
        return _of_flat(pieces, placed)
    there = {piece.rank: piece.array for piece in pieces}
    ranks = placed.get("ranks") or []
    if not ranks or not all(rank in there for rank in ranks):
        return None
    dimension, blocks = placed["dimension"], placed.get("stride", 1)
    parts = [there[rank] for rank in ranks]
    if any(dimension >= part.ndim or part.shape[dimension] % blocks for part in parts):
        return None
    rows = [np.split(part, blocks, dimension) for part in parts]
    return np.concatenate([row[block] for block in range(blocks) for row in rows], dimension)


def _of_flat(pieces: Sequence[Piece], placed: Placed) -> AnyArray | None:
    shape = tuple(placed["shape"])
    out = np.empty(int(np.prod(shape)), pieces[0].array.dtype)
    held = np.zeros(len(out), np.bool_)
    for piece in pieces:
        begin, end = (piece.placed or {}).get("flat", [0, 0])
        if end - begin == piece.array.size:
            out[begin:end] = piece.array.reshape(-1)
            held[begin:end] = True
    return out.reshape(shape) if held.all() else None


def _of_mesh(pieces: Sequence[Piece]) -> AnyArray | None:
    """Return the tensor of a device mesh: shards at their places, partial sums added."""
    shape = tuple(json.loads(pieces[0].placement)["shape"])
    kind = pieces[0].array.dtype
    out, held = np.zeros(shape, kind), np.zeros(shape, np.bool_)
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    summands: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    wanted = 1
    for piece in pieces:
        said = json.loads(piece.placement)
        mesh, coordinate = said["mesh"], said["coordinate"]
        begins, sizes = [0] * len(shape), list(shape)
        partial: list[int] = []
        for axis in _inner_last(said["placements"]):
            way = said["placements"][axis]
            if (shard := _SHARD.match(way)) is not None:
                dimension = int(shard["dimension"]) % len(shape)
                begin, size = _chunk(sizes[dimension], mesh[axis], coordinate[axis])
                begins[dimension] += begin
                sizes[dimension] = size
            elif (part := _PARTIAL.match(way)) is not None:
                if part["operation"] not in ("sum", "avg"):
                    return None
                partial.append(axis)
        place = tuple(begins)
        mine = tuple(coordinate[axis] for axis in partial)
        wanted = int(np.prod([mesh[axis] for axis in partial])) if partial else 1
        if tuple(piece.array.shape) != tuple(sizes):
            return None
        if (place, mine) in seen or not piece.array.size:
            continue  # a replica, or nothing: its place may be another's
        seen.add((place, mine))
        summands.setdefault(place, set()).add(mine)
        region = tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes))
        means = any("avg" in said["placements"][axis] for axis in partial)
        out[region] += piece.array / wanted if means else piece.array
        held[region] = True
    complete = all(len(some) == wanted for place, some in summands.items())
    return out if complete and held.all() else None


def _inner_last(placements: Sequence[str]) -> list[int]:
    """Return the mesh's axes in the order in which they cut: a strided shard cuts what the others have left."""
    return sorted(range(len(placements)), key=lambda axis: placements[axis].startswith("_"))


def _chunk(size: int, parts: int, number: int) -> tuple[int, int]:
    """Return where a part of a dimension begins and how long it is, as torch.chunk cuts it."""
    each = -(-size // parts)
    begin = min(size, each * number)
    return begin, min(size, begin + each) - begin
