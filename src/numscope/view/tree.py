"""The call tree, a group at a time: the children of one call, and the tensors that pass between them.

The page asks only for the groups on the screen. A group with very many children (a flat capture of thousands of calls, a list
of a thousand layers) shows them as stretches of consecutive calls, so that no group has more nodes than can be read.
Nodes are named `r12` (the call in row 12), `r12/0-50` (its children 0 to 49), `root` and `root/0-50`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numscope.core.errors import SettingsError
from numscope.report.pages.run_index import RunIndex
from numscope.report.pages.summary import SEVERITY
from numscope.report.pages.tables import Filter, IndexedTable, RowNumbers

MOST = 48  # nodes of a group
_GROUP = re.compile(r"^(?:root|r(?P<row>\d+))(?:/(?P<start>\d+)-(?P<end>\d+))?$")


@dataclass(frozen=True)
class Forest:
    """The calls of one step of one rank as a tree; index i stands for row rows[i] of the calls table."""

    rows: RowNumbers
    parent: RowNumbers  # index, or -1
    severity: NDArray[np.int8]  # the worst verdict of the call and all calls inside it; -1 for none
    inside: RowNumbers  # the number of calls inside it
    lone: RowNumbers  # the number of calls without a partner, inside it and itself
    phase: list[str | None]
    depth: RowNumbers


def forest(table: IndexedTable, step: int, rank: int) -> Forest:
    """Build the tree of one step of one rank."""
    rows = table.rows(Filter(step=(step,), rank=(rank,)))
    index = np.full(len(table) + 1, -1, np.int64)
    index[rows] = np.arange(len(rows))
    parent_column = table.column("parent")
    parent = parent_column.values[rows].astype(np.int64)
    if parent_column.valid is not None:
        parent = np.where(parent_column.valid[rows], parent, -1)
    parent = index[parent]  # the index -1 is the last entry, which is -1
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


class SideOfStep(NamedTuple):
    """One of the two runs, in one step of one rank."""

    prefix: str  # of its columns: target, reference
    run: RunIndex
    step: int
    rank: int

    @property
    def is_there(self) -> bool:
        return self.run.has(self.step, self.rank)


class Stretch(NamedTuple):
    """Consecutive calls: a range of positions."""

    start: int
    end: int


def children(tree: Forest, group: str, phase: str) -> tuple[RowNumbers, Stretch]:
    """Return a group's calls as indices, and the stretch of them that the group shows."""
    match = _GROUP.match(group)
    if not match:
        raise SettingsError(f"no group {group!r}")
    if match["row"] is None:
        wanted = np.array([p == phase or (phase == "forward" and p == "input") for p in tree.phase], bool)
        top = tree.parent < 0
        # A call whose enclosing call has another phase is at the top of its own phase.
        top |= wanted & ~wanted[tree.parent] & (tree.parent >= 0)
        calls = np.flatnonzero(top & wanted)
    else:
        hits = np.flatnonzero(tree.rows == int(match["row"]))
        if not len(hits):
            raise SettingsError(f"no call {group!r} in this step")
        calls = np.flatnonzero(tree.parent == hits[0])
    start, end = (int(match["start"]), int(match["end"])) if match["start"] else (0, len(calls))
    return calls, Stretch(start, min(end, len(calls)))


def stretches(whole: Stretch) -> list[Stretch]:
    """Cut a stretch into at most MOST parts, of one call each if the calls are few enough."""
    start, end = whole
    size = 1
    while (end - start) / size > MOST:
        size *= 10 if size == 1 else 2
    return [Stretch(at, min(at + size, end)) for at in range(start, end, size)]


def group(
    table: IndexedTable,
    tree: Forest,
    name: str,
    phase: str,
    sides: list[SideOfStep],
) -> dict[str, object]:
    """Return the nodes and edges of a group."""
    calls, whole = children(tree, name, phase)
    base, _, _ = name.partition("/")
    nodes: list[dict[str, object]] = []
    label = np.full(len(tree.rows), -1, np.int64)
    for number, (first, last) in enumerate(stretches(whole)):
        members = calls[first:last]
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
    for side in sides:
        for pair in _edges(table, tree, label, side):
            edges.setdefault(pair, set()).add(side.prefix)
    if not any(_knows_flow(side) for side in sides):
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
        calls, whole = children(tree, name, phase)
        position = int(np.flatnonzero(calls == at)[0])
        inner: list[str] = [name]
        while True:
            whole = next(part for part in stretches(whole) if part.start <= position < part.end)
            if whole.end - whole.start == 1:
                break
            inner.append(f"{name}/{whole.start}-{whole.end}")
        opened = inner + opened
        if name == "root":
            return opened
        at = parent


def _call(table: IndexedTable, tree: Forest, at: int) -> dict[str, object]:
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


def _knows_flow(side: SideOfStep) -> bool:
    """Tell whether a run records which slots show the same tensor: other tools' dumps do not."""
    if not side.is_there:
        return False
    tensors = side.run.step(side.step, side.rank).slot_tensor
    return len(np.unique(tensors)) < len(tensors)


def _edges(table: IndexedTable, tree: Forest, label: RowNumbers, side: SideOfStep) -> set[tuple[int, int]]:
    """Return the pairs of nodes between which a tensor passes on one side."""
    if not side.is_there:
        return set()
    index = side.run.step(side.step, side.rank)
    column = table.column(f"{side.prefix}_order")
    order = column.values[tree.rows].astype(np.int64)
    is_there = np.ones(len(order), bool) if column.valid is None else column.valid[tree.rows]
    size = int(max(order.max(initial=0), index.order.max(initial=0))) + 1
    by_order = np.full(size, -1, np.int64)
    by_order[order[is_there]] = label[is_there]
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
