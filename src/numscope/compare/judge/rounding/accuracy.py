"""How far each operator's own result is off, measured against float64: the table from which rules of rounding are made.

accuracy.csv has a row for each operator, direction, format and chip: the median and the 99.9th percentile of its error, in
units of the shape that its rule in rounding.py gives (roundoff, √terms, cancellation). `python -m bench.noise` measures and
writes it; `numscope doctor --measure` does the same for a chip that it lacks.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from numscope.compare.load.side import Flags, Floats, Ints
from numscope.core.errors import SettingsError
from numscope.core.operators import Rounding, canonical, operator

SIDES = 2.0  # both sides of a pair round
FAULT = 8.0  # times as far off as on all chips that were measured, and as a unit of roundoff
_UNKNOWN = "_foreach_norm"  # stands for what has no row: a chain of products, a sum and a root
_SUM = "sum"


class Key(NamedTuple):
    """The operator, direction and format of a row."""

    operator: str
    backward: bool
    narrow: bool  # a format of fewer digits than float32


class Row(NamedTuple):
    """The measured error of an operator on one chip, in units of its rule's shape."""

    key: Key
    chip: str
    samples: int
    median: float
    high: float  # 99.9th percentile


_FIELDS = ("operator", "direction", "format", "chip", "samples", "median", "high")


def read_rows(lines: Iterable[str], name: str) -> Iterator[Row]:
    """Yield the rows of a table of accuracy."""
    for line in csv.DictReader(one for one in lines if not one.startswith("#")):
        try:
            key = Key(line["operator"], line["direction"] == "backward", line["format"] == "narrow")
            yield Row(key, line["chip"], int(line["samples"]), float(line["median"]), float(line["high"]))
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(
                f"{name} is no table of accuracy: `numscope doctor --measure` writes one ({error})"
            ) from error


def write_rows(rows: Iterable[Row], about: str, file: TextIO) -> None:
    """Write a table of accuracy."""
    file.write("".join(f"# {line}\n" for line in about.splitlines()))
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_FIELDS)
    for (name, backward, narrow), chip, samples, median, high in sorted(rows):
        direction, width = "backward" if backward else "forward", "narrow" if narrow else "single"
        writer.writerow((name, direction, width, chip, samples, f"{median:.3g}", f"{high:.3g}"))


@dataclass(frozen=True)
class Accuracy:
    """The largest error of each operator over the chips of one or more tables."""

    high: dict[Key, float]
    by_class: dict[tuple[Rounding, bool, bool], float]

    def of(self, name: str, rounding: Rounding, backward: bool, narrow: bool) -> float:
        """Return an operator's own error, or where nobody measured it that of its class.

        The gradient of an operand that was broadcast is a sum, whatever the operator.
        """
        own = self._of(name, rounding, backward, narrow)
        return max(own, self.high[Key(_SUM, False, narrow)]) if backward else own

    def _of(self, name: str, rounding: Rounding, backward: bool, narrow: bool) -> float:
        measured = self.high.get(Key(canonical(name), backward, narrow))
        if measured is not None:
            return measured
        if rounding is Rounding.MOVE:
            return 0.0
        if rounding is Rounding.COMMUNICATE:
            return self.high[Key(_SUM, False, narrow)]
        return self.by_class.get((rounding, backward, narrow), self.high[Key(_UNKNOWN, False, False)])

    def of_pairs(self, names: Sequence[str], classes: Ints, backward: Flags, narrow: Flags) -> Floats:
        """Return how far the two sides of each pair of calls may be apart by their own rounding."""
        known: dict[tuple[str, int, bool, bool], float] = {}
        keys = list(zip(names, classes.tolist(), backward.tolist(), narrow.tolist()))
        for key in set(keys):
            name, kind, behind, coarse = key
            known[key] = SIDES * self.of(name, Rounding(kind), behind, coarse)
        return np.array([known[key] for key in keys], dtype=np.float64)


def accuracy_of(rows: Iterable[Row]) -> Accuracy:
    """Return the accuracy that rows show."""
    high: dict[Key, float] = {}
    for row in rows:
        high[row.key] = max(high.get(row.key, 0.0), row.high)
    by_class: dict[tuple[Rounding, bool, bool], list[float]] = {}
    for key, value in high.items():
        by_class.setdefault((operator(key.operator).rounding, key.backward, key.narrow), []).append(value)
    return Accuracy(high, {key: float(np.median(values)) for key, values in by_class.items()})


def own_rows() -> list[Row]:
    """Return the rows of the table that comes with numscope."""
    return list(read_rows(files(__package__).joinpath("accuracy.csv").read_text().splitlines(), "accuracy.csv"))


def tables() -> Path:
    """Return the folder of the tables that `numscope doctor --measure` writes, a file for each chip."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home, "numscope", "accuracy")


def is_fault(row: Row, usual: Accuracy) -> bool:
    """Tell whether a chip's operator is much farther off than on every chip that was measured: no rounding, and not granted."""
    known = usual.high.get(row.key)
    return known is not None and row.high > FAULT * max(known, 1.0)


@cache
def measured(chips: frozenset[str] = frozenset()) -> Accuracy:
    """Return the accuracy of the chips in the table that comes with numscope, and of these where they were measured here."""
    usual = accuracy_of(own_rows())
    found = [row for row in rows_of_users(chips) if not is_fault(row, usual)]
    return accuracy_of([*own_rows(), *found]) if found else usual


def rows_of_users(chips: frozenset[str]) -> Iterator[Row]:
    """Yield the rows of these chips in the tables of this machine's user."""
    for path in sorted(tables().glob("*.csv")) if chips else ():
        yield from (
            row for row in read_rows(path.read_text(encoding="utf-8").splitlines(), str(path)) if row.chip in chips
        )


def unmeasured_chips(chips: Iterable[str]) -> list[str]:
    """Return the chips of which no table has a row."""
    known = {row.chip for row in own_rows()}
    return [one for one in sorted(set(chips) - known) if not any(True for _ in rows_of_users(frozenset((one,))))]
