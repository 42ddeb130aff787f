"""Calls with their slots and statistics, as `numscope show RUN PATTERN` prints them.

  slot      dtype    shape             min     max     mean      l2  nan  inf  zero  hash

Functional.gelu.3.forward   blocks.1.mlp   model.py:41  return F.gelu(x)   approximate='none'
  input.0   float32  [4, 32, 64]   -3.1004  3.2004  0.01201  89.912    0    0     0  6c1f0a7738b7412c
  output.0  float32  [4, 32, 64]  -0.16997  3.1982  0.28107  52.201    0    0     0  098a7738b7412ca4
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from numscope.core.errors import RunError
from numscope.report.terminal.lines import Line, Part, align, number
from numscope.store.joins import joined_calls, joined_tensors
from numscope.store.reader import Run
from numscope.store.schema import TableRow

_CALL = ("step", "rank", "order", "name", "kind", "module", "module_class", "phase", "arguments", "stack", "recompute")
_CALL_MORE = ("error", "source_file", "source_line", "source_function", "source_code")
_SLOT = ("slot", "dtype", "shape", "min", "max", "mean", "l2", "nan", "inf", "zero", "hash", "kept", "sampled", "note")


@dataclass
class MatchingCalls:
    """The calls that match a pattern, as many as were asked for."""

    calls: list[TableRow] = field(default_factory=list)  # each with its "slots", and "frames" of its stack
    total: int = 0
    many_steps: bool = False
    many_ranks: bool = False


def find(
    run: Run,
    pattern: str,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
    most: int | None = None,
) -> MatchingCalls:
    """Return the calls whose name matches, and calls with a tensor whose name matches, these with the matching slots alone."""
    matching = MatchingCalls()
    expression = _expression(pattern)
    places = _places(run, steps, ranks)
    for at, rank_number in places:
        tables = run.step_tables(at, rank_number)
        stacks = run.stacks(rank_number)
        calls = joined_calls(tables.calls, stacks, rank_number)
        slots = joined_tensors(tables.calls, tables.slots, tables.tensors, rank_number, sketch=False)
        by_name = pc.match_substring_regex(calls["name"], expression, ignore_case=True)
        by_tensor = pc.match_substring_regex(slots["name"], expression, ignore_case=True)
        of_calls = pc.is_in(slots["call"], pc.unique(calls["order"].filter(by_name)))
        wanted = slots.filter(pc.or_(by_tensor, of_calls))
        by_slot = pc.is_in(calls["order"], pc.unique(wanted["call"]))
        chosen = calls.filter(pc.or_(by_name, by_slot)).sort_by("order")
        matching.total += chosen.num_rows
        room = chosen.num_rows if most is None else max(0, most - len(matching.calls))
        shown = chosen.slice(0, room)
        if shown.num_rows:
            matching.calls += _with_slots(shown, wanted, stacks)
    if not matching.total:
        raise RunError(_nothing(run, pattern, places))
    matching.many_steps = len({call["step"] for call in matching.calls}) > 1
    matching.many_ranks = len(run.ranks) > 1
    return matching


def lines(matching: MatchingCalls, stacks: bool = False) -> list[Line]:
    """Return the calls as lines."""
    titles = ["slot", "dtype", "shape", "min", "max", "mean", "l2", "nan", "inf", "zero", "hash", ""]
    cells = [titles, *(_cells(slot) for call in matching.calls for slot in call["slots"])]
    rows = iter(align(cells, [False, False, False, *[True] * 7, False, False]))
    head = next(rows)
    out: list[Line] = [[("  " + "  ".join(head), "dim")]]
    for call in matching.calls:
        out += ["", _title(matching, call)]
        if call["error"]:
            out.append(["  raised ", (call["error"], "red")])
        for slot in call["slots"]:
            bad = (slot["nan"] or 0) + (slot["inf"] or 0) > 0
            out.append([("  " + "  ".join(next(rows)), "red" if bad else "")])
        if stacks:
            out += _traceback(call)
    if len(matching.calls) < matching.total:
        out += ["", [(f"{matching.total - len(matching.calls)} more calls: --top 0 shows all", "dim")]]
    return out


def to_dict(matching: MatchingCalls, stacks: bool = False) -> dict[str, object]:
    """Return the calls as JSON."""
    drop = set() if stacks else {"frames"}
    calls = [{key: value for key, value in call.items() if key not in drop} for call in matching.calls]
    return {"format": "numscope.show/1", "total": matching.total, "calls": calls}


def _expression(pattern: str) -> str:
    """Return the regular expression of a pattern: with * or ? it must match the whole name."""
    if not re.search(r"[*?]", pattern):
        return re.escape(pattern)
    return "^" + "".join({"*": ".*", "?": "."}.get(letter) or re.escape(letter) for letter in pattern) + "$"


def _places(run: Run, wanted: Collection[int] | None, ranks: Collection[int] | None) -> list[tuple[int, int]]:
    """Return (step, rank) of the steps to search, those that were cut off included."""
    steps = {(at, rank_number) for rank_number in run.ranks for at in run.written_steps(rank_number)}
    chosen = sorted((at, n) for at, n in steps if (not wanted or at in wanted) and (not ranks or n in ranks))
    if not chosen:
        where = " and ".join(
            f"{word} {value}" for word, values in (("step", wanted), ("rank", ranks)) for value in values or ()
        )
        raise RunError(f"{run.path} has no {where or 'complete step'}: it has steps {run.steps}, ranks {run.ranks}")
    return chosen


def _with_slots(calls: pa.Table, slots: pa.Table, stacks: pa.Table) -> list[TableRow]:
    by_call: dict[int, list[TableRow]] = {}
    near = slots.filter(pc.is_in(slots["call"], pc.unique(calls["order"])))
    for row in near.select(["call", *_SLOT]).to_pylist():
        by_call.setdefault(row.pop("call"), []).append(row)
    used = stacks.filter(pc.is_in(stacks["stack"], pc.unique(calls["stack"])))
    frames = {row["stack"]: row["frames"] for row in used.to_pylist()}
    rows = calls.select([*_CALL, *_CALL_MORE]).to_pylist()
    return [{**row, "slots": by_call.get(row["order"], []), "frames": frames.get(row["stack"])} for row in rows]


def _title(matching: MatchingCalls, call: TableRow) -> list[Part]:
    parts: list[Part] = []
    if matching.many_steps or matching.many_ranks:
        rank = f" rank {call['rank']}" if matching.many_ranks else ""
        parts.append((f"step {call['step']}{rank}  ", "dim"))
    parts.append((call["name"], "bold"))
    if call["recompute"]:
        parts.append("  (recomputed)")
    if call["module"] and call["kind"] != "module":
        parts += ["   ", (call["module"], "cyan")]
    if call["source_file"]:
        code = (f"  {call['source_code'] or ''}", "green")
        parts += ["   ", f"{_relative(call['source_file'])}:{call['source_line']}", code]
    arguments = _arguments(call["arguments"])
    if arguments:
        parts += ["   ", (arguments, "yellow")]
    return parts


def _relative(file: str) -> str:
    """Return a path relative to the working directory, if it is inside it."""
    here = os.getcwd() + os.sep
    return file[len(here) :] if file.startswith(here) else file


def _arguments(text: str | None) -> str:
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        return text or ""
    said = [f"{key}: {item!r}" for key, item in (value.get("args") or {}).items()]
    said += [f"{key}={item!r}" for key, item in (value.get("kwargs") or {}).items()]
    return ", ".join(said)


def _cells(slot: TableRow) -> list[str]:
    if slot["dtype"] is None:
        return [slot["slot"], slot["note"] or "not measured", *[""] * 10]
    hash_ = "-" if slot["hash"] is None else f"{slot['hash']:016x}"
    kept = "kept" if slot["kept"] else "sample" if slot["sampled"] else ""
    statistics = [number(slot[name]) for name in ("min", "max", "mean", "l2", "nan", "inf", "zero")]
    return [slot["slot"], slot["dtype"], str(slot["shape"]), *statistics, hash_, kept]


def _traceback(call: TableRow) -> list[Line]:
    if not call["frames"]:
        return [[("  no stack was recorded (stacks=False?)", "dim")]]
    out: list[Line] = [[("  Traceback (most recent call last):", "dim")]]
    for frame in call["frames"]:
        out.append(f'    File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}')
        if frame["code"]:
            out.append([("      " + frame["code"].strip(), "green")])
    return out


def _nothing(run: Run, pattern: str, steps: list[tuple[int, int]]) -> str:
    names: dict[str, None] = {}
    for at, rank in steps[:4]:
        names.update(dict.fromkeys(run.step_tables(at, rank).calls["name"].to_pylist()))
    words = dict.fromkeys(part for name in names for part in name.split(".") if not part.isdecimal())
    near = difflib.get_close_matches(pattern.strip("*"), [*words, *list(names)[:20_000]], n=3, cutoff=0.6)
    cure = f"nearest: {', '.join(near)}" if near else f"numscope show {run.path} '*' lists all"
    return f"nothing in {run.path} matches {pattern!r} ({cure})"
