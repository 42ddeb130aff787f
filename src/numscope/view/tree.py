"""The call tree, a group at a time: the children of one call, and which of them pass tensors to which.

Only what is on the screen is asked for. A group with very many children (a flat capture of thousands of calls, a list
of a thousand layers) shows them as stretches of consecutive calls, so that no group has more nodes than can be read.
Nodes are named `r12` (the call in row 12), `r12/0-50` (its children 0 to 49), `root` and `root/0-50`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.core.errors import SettingsError
from numscope.core.words import PairVerdict
from numscope.report.pages.side import Side
from numscope.report.pages.tables import Filter, IndexedTable

MOST = 48  # nodes of a group
SEVERITY: tuple[PairVerdict, ...] = ("identical", "equivalent", "unmatched", "inherited", "origin")
_GROUP = re.compile(r"^(root|r\d+)(?:/(\d+)-(\d+))?$")
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Forest:
    """The calls of one step of one rank as a tree; index i stands for row rows[i] of the calls table."""

    rows: Rows
    parent: Rows  # index, or -1
    severity: NDArray[np.int8]  # worst of the call and all inside it; -1: nothing to say
    inside: Rows  # how many calls are inside it
    lone: Rows  # how many of them, and of itself, have no partner
    phase: list[str | None]
    depth: Rows


def forest(table: IndexedTable, step: int, rank: int) -> Forest:
    """Build the tree of one step of one rank."""
    rows = table.rows(Filter(step=(step,), rank=(rank,)))
    index = np.full(len(table) + 1, -1, np.int64)
    index[rows] = np.arange(len(rows))
    parent_column = table.column("parent")
    parent = parent_column.values[rows].astype(np.int64)
    if parent_column.valid is not None:
        parent = np.where(parent_column.valid[rows], parent, -1)
    parent = index[parent]  # -1 finds the last entry, which stays -1
    depth = np.zeros(len(rows), np.int64)
    above = parent.copy()
    while (above >= 0).any():
        depth[above >= 0] += 1
        above = np.where(above >= 0, parent[above], -1)
        if depth.max(initial=0) > len(rows):
            raise SettingsError("the calls of this run enclose each other in a circle")
    verdict = table.column("verdict")
    words = verdict.words.to_pylist() if verdict.words is not None else []
    code = np.array([SEVERITY.index(w) if w in SEVERITY else -1 for w in words] + [-1], np.int8)
    severity = code[verdict.values[rows]]
    inside = np.zeros(len(rows), np.int64)
    lone = (severity == SEVERITY.index("unmatched")).astype(np.int64)
    for level in range(int(depth.max(initial=0)), 0, -1):
        at = np.flatnonzero(depth == level)
        np.maximum.at(severity, parent[at], severity[at])
        np.add.at(inside, parent[at], inside[at] + 1)
        np.add.at(lone, parent[at], lone[at])
    phases = table.column("phase")
    names = phases.words.to_pylist() if phases.words is not None else []
    phase = [names[code] if code >= 0 else None for code in phases.values[rows]]
    return Forest(rows, parent, severity, inside, lone, phase, depth)


def children(tree: Forest, group: str, phase: str) -> tuple[Rows, int, int]:
    """Return (the group's calls as indices, where its stretch begins, where it ends)."""
    match = _GROUP.match(group)
    if not match:
        raise SettingsError(f"no group {group!r}")
    if match[1] == "root":
        wanted = np.array([p == phase or (phase == "forward" and p == "input") for p in tree.phase], bool)
        top = tree.parent < 0
        # A call whose enclosing call is of another phase is at the top of its own.
        top |= wanted & ~wanted[tree.parent] & (tree.parent >= 0)
        found = np.flatnonzero(top & wanted)
    else:
        hits = np.flatnonzero(tree.rows == int(match[1][1:]))
        if not len(hits):
            raise SettingsError(f"no call {group!r} in this step")
        found = np.flatnonzero(tree.parent == hits[0])
    start, end = (int(match[2]), int(match[3])) if match[2] else (0, len(found))
    return found, start, min(end, len(found))


def stretches(start: int, end: int) -> list[tuple[int, int]]:
    """Cut a range into at most MOST stretches; of one call each where they are few enough."""
    size = 1
    while (end - start) / size > MOST:
        size *= 10 if size == 1 else 2
    return [(at, min(at + size, end)) for at in range(start, end, size)]


def group(
    table: IndexedTable,
    tree: Forest,
    name: str,
    phase: str,
    sides: list[tuple[str, Side, int, int]],
) -> dict[str, Any]:
    """Return the nodes and edges of a group; `sides` are (column prefix, run, step, rank)."""
    found, start, end = children(tree, name, phase)
    base = name.split("/")[0]
    nodes: list[dict[str, Any]] = []
    label = np.full(len(tree.rows), -1, np.int64)
    for number, (first, last) in enumerate(stretches(start, end)):
        members = found[first:last]
        label[members] = number
        rows = tree.rows[members]
        if last - first == 1:
            nodes.append(_call(table, tree, int(members[0])))
        else:
            worst = int(tree.severity[members].max())
            nodes.append(
                {
                    "id": f"{base}/{first}-{last}",
                    "row": None,
                    "label": f"{_text(table, 'target_name', rows[0]) or _text(table, 'reference_name', rows[0])} …",
                    "kind": "stretch",
                    "verdict": SEVERITY[worst] if worst >= 0 else None,
                    "inside": int((tree.inside[members] + 1).sum()),
                    "lone": int(tree.lone[members].sum()),
                    "opens": True,
                    "target": True,
                    "reference": True,
                }
            )
    for level in range(int(tree.depth.max(initial=0)) + 1):
        at = np.flatnonzero((tree.depth == level) & (label < 0) & (tree.parent >= 0))
        label[at] = label[tree.parent[at]]
    edges: dict[tuple[int, int], set[str]] = {}
    for prefix, side, step, rank in sides:
        for pair in _edges(table, tree, label, prefix, side, step, rank):
            edges.setdefault(pair, set()).add(prefix)
    if not any(_knows_flow(side, step, rank) for _, side, step, rank in sides):
        edges = {(i, i + 1): {"order"} for i in range(len(nodes) - 1)}
    return {
        "id": name,
        "nodes": nodes,
        "edges": [[nodes[a]["id"], nodes[b]["id"], sorted(on)] for (a, b), on in sorted(edges.items())],
    }


def path(tree: Forest, row: int) -> list[str]:
    """Return the groups to open, outermost first, for the call in this row to be on the screen."""
    hits = np.flatnonzero(tree.rows == row)
    if not len(hits):
        return []
    at = int(hits[0])
    phase = tree.phase[at] or "forward"
    phase = "forward" if phase == "input" else phase
    opened: list[str] = []
    while True:
        parent = int(tree.parent[at])
        name = "root" if parent < 0 or tree.phase[parent] != tree.phase[at] else f"r{tree.rows[parent]}"
        found, start, end = children(tree, name, phase)
        position = int(np.flatnonzero(found == at)[0])
        inner: list[str] = [name]
        while True:
            first, last = next((a, b) for a, b in stretches(start, end) if a <= position < b)
            if last - first == 1:
                break
            inner.append(f"{name}/{first}-{last}")
            start, end = first, last
        opened = inner + opened
        if name == "root":
            return opened
        at = parent


def _call(table: IndexedTable, tree: Forest, at: int) -> dict[str, Any]:
    row = int(tree.rows[at])
    target, reference = _text(table, "target_name", row), _text(table, "reference_name", row)
    own = _text(table, "verdict", row)
    worst = int(tree.severity[at])
    return {
        "id": f"r{row}",
        "row": row,
        "label": target or reference,
        "reference_label": reference,
        "kind": _text(table, "kind", row),
        "verdict": SEVERITY[worst] if worst >= 0 else own,
        "own": own,
        "inside": int(tree.inside[at]),
        "lone": int(tree.lone[at]),
        "opens": bool(tree.inside[at]),
        "target": target is not None,
        "reference": reference is not None,
    }


def _text(table: IndexedTable, name: str, row: int) -> str | None:
    value = table.table.column(name)[int(row)].as_py() if name in table.table.column_names else None
    return None if value is None else str(value)


def _knows_flow(side: Side, step: int, rank: int) -> bool:
    """Tell whether some tensor is in two slots: other tools' dumps do not say which tensors are the same."""
    if not side.has(step, rank):
        return False
    tensors = side.step(step, rank).slot_tensor
    return len(np.unique(tensors)) < len(tensors)


def _edges(
    table: IndexedTable, tree: Forest, label: Rows, prefix: str, side: Side, step: int, rank: int
) -> set[tuple[int, int]]:
    if not side.has(step, rank):
        return set()
    index = side.step(step, rank)
    column = table.column(f"{prefix}_order")
    order = column.values[tree.rows].astype(np.int64)
    known = np.ones(len(order), bool) if column.valid is None else column.valid[tree.rows]
    size = int(max(order.max(initial=0), index.order.max(initial=0))) + 1
    by_order = np.full(size, -1, np.int64)
    by_order[order[known]] = label[known]
    node = by_order[index.slot_call]
    slot = np.asarray(index.slots.column("slot").to_pylist(), dtype=object)
    out = np.array([name.startswith("output") for name in slot], bool)
    useful = (node >= 0) & (index.slot_tensor >= 0)
    producer: dict[int, int] = {}
    for tensor, at in zip(index.slot_tensor[useful & out].tolist(), node[useful & out].tolist()):
        producer.setdefault(tensor, at)
    pairs = set()
    for tensor, at in zip(index.slot_tensor[useful & ~out].tolist(), node[useful & ~out].tolist()):
        source = producer.get(tensor, -1)
        if source >= 0 and source != at:
            pairs.add((source, at))
    return pairs
