"""One step of one rank of one run as numpy columns: the input of alignment, measures and the judge.

A codebook that both sides share turns strings into integers, so that all later stages compare integers.
Rows are in call order; `parent`, `forward` and a slot's `call` and `tensor` are row numbers, -1 for none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from numscope.compare.load.verified import Verified, verified
from numscope.compare.load.wrappers import normalise
from numscope.core.names import parse_call
from numscope.core.operators import canonical, writes_in_place
from numscope.store.joins import sketch_array

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


_NAMED_BY_USER = frozenset({"Save", "Parameter", "Optimizer", "Distributed"})


class Tables(Protocol):
    """The raw tables of one step of one rank, as store.reader gives them."""

    @property
    def calls(self) -> pa.Table: ...
    @property
    def slots(self) -> pa.Table: ...
    @property
    def tensors(self) -> pa.Table: ...


class Codebook:
    """Numbers for strings, shared by the two sides of a comparison; -1 is null."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.words: list[str] = []

    def code(self, word: str) -> int:
        """Return the number of a word; a word that is not in the book gets the next number."""
        number = self.numbers.setdefault(word, len(self.words))
        if number == len(self.words):
            self.words.append(word)
        return number

    def encode(self, column: pa.Array | pa.ChunkedArray) -> Ints:
        """Return a string column as numbers."""
        encoded = (column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column).dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        table = np.array([-1 if word is None else self.code(word) for word in encoded.dictionary.to_pylist()] + [-1])
        indices: NDArray[np.int64] = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
        numbers: Ints = table[indices]
        return numbers


def distinct(codes: Ints) -> tuple[Ints, Ints]:
    """Return the distinct codes of a column, and each row's index among them; in linear time, as codes are small numbers."""
    seen = np.zeros(int(codes.max(initial=-1)) + 2, np.bool_)
    seen[codes + 1] = True
    return np.flatnonzero(seen) - 1, (np.cumsum(seen) - 1)[codes + 1]


@dataclass(frozen=True)
class Calls:
    """Columns of a side's calls."""

    order: Ints
    parent: Ints
    forward: Ints
    kind: Ints
    phase: Ints
    module: Ints  # path without wrappers
    module_class: Ints
    op: Ints  # canonical operator; for a module call its path
    arguments: Ints
    stack: Ints
    recompute: Flags
    failed: Flags
    children: Ints  # how many calls have this one as parent
    names: pa.Array
    verified: Verified | None = None  # what is known of their own errors

    def __len__(self) -> int:
        return len(self.order)

    def name(self, row: int) -> str:
        return str(self.names[int(row)])


@dataclass(frozen=True)
class Slots:
    """Columns of a side's slots, sorted by call."""

    call: Ints
    slot: Ints
    tensor: Ints
    start: Ints  # start[c] : start[c + 1] are the slots of call c
    note: Ints  # why it has no tensor, -1 where it has one


@dataclass(frozen=True)
class Tensors:
    """Columns of a side's tensors. Statistics are NaN and `measured` is false where only the structure was kept."""

    dtype: Ints
    shape: Ints
    elements: Ints
    nan: Ints
    posinf: Ints
    neginf: Ints
    zero: Ints
    min: Floats
    max: Floats
    mean: Floats
    l2: Floats
    hash: Words
    measured: Flags
    sketch: Floats
    sketched: Flags
    kept: Flags  # all of the data was kept
    sampled: Flags  # a sample of the data was kept
    shard: list[str]  # "" where no data was kept, as the key is
    key: list[str]
    scale: Floats  # the loss scale that its numbers were divided by (loss_scale.py), 1 for none


@dataclass(frozen=True)
class Side:
    """One step of one rank of one run."""

    step: int
    rank: int
    calls: Calls
    slots: Slots
    tensors: Tensors
    book: Codebook = field(repr=False)

    def writes_in_place(self, row: int) -> bool:
        """Tell whether a call writes to its input: by its operator's name, or by an argument `inplace=True`."""
        name, arguments = parse_call(self.calls.name(row)), int(self.calls.arguments[row])
        marked = name is not None and not name.path and writes_in_place(name.op)
        return marked or (arguments >= 0 and '"inplace": true' in self.book.words[arguments])


def load(tables: Tables, step: int, rank: int, book: Codebook, checks: pa.Table | None = None) -> Side:
    """Return the tables of one step of one rank as columns; `checks`: what was verified of its calls."""
    calls_table, order = tables.calls, _ints(tables.calls["order"])
    if bool((np.diff(order) < 0).any()):
        calls_table = calls_table.sort_by("order")
        order = _ints(calls_table["order"])
    calls = _calls(calls_table, order, book)
    if checks is not None:
        calls = replace(calls, verified=verified(calls_table, checks))
    tensor_numbers = _ints(tables.tensors["tensor"])
    slots = _slots(tables.slots, order, tensor_numbers, book)
    return Side(step, rank, calls, slots, _tensors(tables.tensors, book), book)


def _ints(column: pa.ChunkedArray, null: int = -1) -> Ints:
    numbers: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), null).to_numpy().astype(np.int64, copy=False)
    return numbers


def _flags(column: pa.ChunkedArray) -> Flags:
    return np.asarray(pc.fill_null(column, False).to_numpy(), dtype=np.bool_)


def _rows_of(numbers: Ints, wanted: Ints) -> Ints:
    """Return the row of each wanted number, -1 where no row has it."""
    if not len(numbers):
        return np.full(len(wanted), -1, dtype=np.int64)
    if numbers[0] == 0 and numbers[-1] == len(numbers) - 1 and bool((np.diff(numbers) == 1).all()):
        return np.where(wanted < len(numbers), wanted, -1)  # capture numbers rows from 0 without gaps
    sort = np.argsort(numbers, kind="stable")
    position = np.searchsorted(numbers, wanted, sorter=sort).clip(max=len(numbers) - 1)
    rows = sort[position]
    return np.where(numbers[rows] == wanted, rows, -1)


def _op_names(names: pa.Array) -> pa.Array:
    """Return call names without index and phase: `Functional.linear.5.forward` is `Functional.linear`."""
    flat = pc.replace_substring_regex(names, r"\.\d+\.(forward|backward|input)$", "")
    return pc.replace_substring_regex(flat, r"\.(forward|backward|step)\.\d+$", "")


def _calls(table: pa.Table, order: Ints, book: Codebook) -> Calls:
    names = table["name"].combine_chunks()
    if isinstance(names, pa.ChunkedArray):
        names = pa.concat_arrays(names.chunks) if names.num_chunks else pa.array([], pa.string())
    if pa.types.is_dictionary(names.type):
        names = names.dictionary_decode()
    kind = book.encode(table["kind"])
    module = _recode(book.encode(table["module"]), book, normalise)
    spoken = (
        table["spoken"].combine_chunks() if "spoken" in table.column_names else names
    )  # frameworks.py adds the column where the frameworks differ
    op = _recode(book.encode(_op_names(spoken)), book, _canonical_ops)
    is_module = kind == book.code("module")
    op = np.where(is_module, _recode(module, book, lambda paths: {path: f"path:{path}" for path in paths}), op)
    parent = _rows_of(order, _ints(table["parent"]))
    return Calls(
        order=order,
        parent=parent,
        forward=_rows_of(order, _ints(table["forward"])),
        kind=kind,
        phase=book.encode(table["phase"]),
        module=module,
        module_class=book.encode(table["module_class"]),
        op=op,
        arguments=book.encode(table["arguments"]),
        stack=_ints(table["stack"]),
        recompute=_flags(table["recompute"]),
        failed=np.asarray(pc.is_valid(table["error"]).to_numpy(), dtype=np.bool_),
        children=np.bincount(parent[parent >= 0], minlength=len(order)).astype(np.int64),
        names=names,
    )


def _canonical_ops(ops: list[str]) -> dict[str, str]:
    canonicals = {}
    for op in ops:
        prefix, _, rest = op.partition(".")
        if prefix == "Data":  # its name is the class of the module that the data enters, which may be a wrapper
            canonicals[op] = prefix
        else:
            canonicals[op] = f"{prefix}.{rest}" if prefix in _NAMED_BY_USER else canonical(rest or op)
    return canonicals


def _recode(codes: Ints, book: Codebook, rename: Callable[[list[str]], dict[str, str]]) -> Ints:
    """Return the codes of a column's words after `rename`, which is called once with the distinct words."""
    present, index = distinct(codes)
    words = [book.words[code] if code >= 0 else "" for code in present.tolist()]
    renamed = rename(words)
    return np.array([book.code(renamed[word]) for word in words], dtype=np.int64)[index]


def _without_wrappers(slots: list[str]) -> dict[str, str]:
    """Return each slot with the wrappers' parts removed from a parameter's dotted name, as an optimizer's slots have it."""
    named = {slot: slot.partition(".") for slot in slots}
    dotted = {tail for head, _, tail in named.values() if head.startswith("parameters") and "." in tail}
    plain = normalise(dotted)
    return {slot: f"{head}.{plain[tail]}" if tail in plain else slot for slot, (head, _, tail) in named.items()}


def _slots(table: pa.Table, order: Ints, tensor_numbers: Ints, book: Codebook) -> Slots:
    call = _rows_of(order, _ints(table["call"]))
    slot = _recode(book.encode(table["slot"]), book, _without_wrappers)
    tensor = _rows_of(tensor_numbers, _ints(table["tensor"]))
    tensor = np.where(_ints(table["tensor"]) < 0, -1, tensor)
    note = book.encode(table["note"])
    there = call >= 0
    if not there.all():
        call, slot, tensor, note = call[there], slot[there], tensor[there], note[there]
    if bool((np.diff(call) < 0).any()):
        sort = np.argsort(call, kind="stable")
        call, slot, tensor, note = call[sort], slot[sort], tensor[sort], note[sort]
    start = np.searchsorted(call, np.arange(len(order) + 1))
    return Slots(call, slot, tensor, start, note)


def _floats(column: pa.ChunkedArray) -> Floats:
    return np.asarray(pc.fill_null(column, np.nan).to_numpy(), dtype=np.float64)


def _sketches(table: pa.Table) -> tuple[Floats, Flags]:
    values, valid = sketch_array(table["sketch"])
    sketch = np.where(valid[:, None], values, 0.0).astype(np.float64)
    low = table["sketch_low"]
    if low.null_count < len(low):
        there = np.asarray(pc.is_valid(low).to_numpy(), dtype=np.bool_)
        rest = b"".join(pc.drop_null(low).to_pylist())
        sketch[there] += np.frombuffer(rest, np.float32).reshape(-1, sketch.shape[1])
    return sketch, valid


def _tensors(table: pa.Table, book: Codebook) -> Tensors:
    shape = pc.binary_join(table["shape"].combine_chunks().cast(pa.list_(pa.string())), ", ")
    sketch, sketched = _sketches(table)
    hashes = table["hash"]
    shard, key = (pc.fill_null(table[name], "").to_pylist() for name in ("shard", "key"))
    sampled = _flags(table["sampled"])
    there = np.asarray(pc.is_valid(table["key"]).to_numpy(), dtype=np.bool_)
    return Tensors(
        dtype=book.encode(table["dtype"]),
        shape=book.encode(shape),
        elements=_ints(table["elements"]),
        nan=_ints(table["nan"], 0),
        posinf=_ints(table["posinf"], 0),
        neginf=_ints(table["neginf"], 0),
        zero=_ints(table["zero"], 0),
        min=_floats(table["min"]),
        max=_floats(table["max"]),
        mean=_floats(table["mean"]),
        l2=_floats(table["l2"]),
        hash=np.asarray(pc.fill_null(hashes, 0).to_numpy(), dtype=np.uint64),
        measured=np.asarray(pc.is_valid(hashes).to_numpy(), dtype=np.bool_),
        sketch=sketch,
        sketched=sketched,
        kept=there & ~sampled,
        sampled=there & sampled,
        shard=shard,
        key=key,
        scale=np.ones(len(there)),
    )
