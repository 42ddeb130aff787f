"""The two forms of hooktools' page (two directories, two files) over numscope runs.

`compat.hooktools` plugs its own dumps in by giving `create_app` another object with the methods of `Forms`; the pages
are the same. Here a directory is a run, and a file is one tensor of a run, written `RUN::tensor name`.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from numscope.core.errors import MissingExtraError, SettingsError
from numscope.core.json_value import Json
from numscope.store.schema import TableRow

FOLDERS = ("forward", "backward", "gradient")
METRICS = ("L1", "AE", "MAE", "CS", "MSE", "RMSE", "MAPE")
_RANGE = re.compile(r"^(?P<open>[\[(])\s*(?P<low>\d+)\s*,\s*(?P<high>\d+)\s*(?P<close>[\])])$")
_FULL_WIDTH = str.maketrans("［］（），【】", "[](),[]")


@dataclass(frozen=True)
class DirectoryForm:
    """The fields of the form for two directories."""

    first: str
    second: str
    folder: str = "forward"
    epochs: str = ""
    steps: str = ""
    metric: str = "RMSE"
    threshold: float | None = None


@dataclass(frozen=True)
class FileForm:
    """The fields of the form for two files."""

    first: str
    second: str
    metric: str = "RMSE"
    threshold: float | None = None


@dataclass(frozen=True)
class Entry:
    """One line of the log: the place, the error, and both values."""

    folder: str
    epoch: int | None
    step: int | None
    place: str  # "input" or "output" (or "gradient")
    index: str
    first_path: str
    second_path: str
    metric: str
    error: float | None
    module: str
    first_value: str
    second_value: str


class Forms(Protocol):
    """The data behind the two form pages; implemented here for runs, and by compat.hooktools for its dumps."""

    def directory(self, form: DirectoryForm) -> Iterator[Entry]:
        """Yield an entry for every tensor of the chosen folder, epochs and steps whose error is above the threshold."""
        ...

    def file(self, form: FileForm) -> Iterator[Entry]:
        """Yield the entries of one pair of files."""
        ...

    def neighbour(self, first: str, second: str, direction: int) -> tuple[str, str]:
        """Return the pair of files after (1) or before (-1) this one, running on into the neighbouring step."""
        ...


def in_range(text: str) -> Callable[[int], bool]:
    """Return the test of a range in hooktools' notation: `7`, `[0,8)`, `[1,2]`, also in full width; empty is everything."""
    text = text.strip().translate(_FULL_WIDTH)
    if not text or text == "-1":
        return lambda number: True
    if text.lstrip("-").isdecimal():
        only = int(text)
        return lambda number: number == only
    if not (match := _RANGE.match(text)):
        raise SettingsError(f"not a range: {text!r}; write 7, [0,8) or [1,2]")
    low = int(match["low"]) + (match["open"] == "(")
    high = int(match["high"]) - (match["close"] == ")")
    return lambda number: low <= number <= high


def error_of(row: TableRow, metric: str) -> float | None:
    """Return hooktools' metric of a row of a comparison's pairs, or None where the row does not have it."""
    rmse = row["rmse"]
    measures = {"CS": row["cosine"], "RMSE": rmse, "MAPE": row["mape"], "AE": row["max_abs_err"]}
    if metric == "MSE":
        return None if rmse is None else rmse * rmse
    if metric not in METRICS:
        raise SettingsError(f"no metric {metric!r}: {', '.join(METRICS)}")
    error = measures.get(metric)
    return None if error is None else float(error)


def above(error: float | None, metric: str, threshold: float | None) -> bool:
    """Tell whether an entry is shown; a cosine is an error when it is below the threshold."""
    if threshold is None or error is None or math.isnan(error):
        return True
    return error < threshold if metric == "CS" else error > threshold


class EitherForms:
    """The forms over numscope runs and over another tool's dumps; `others` makes the latter when they are first needed."""

    def __init__(self, others: Callable[[], Forms]) -> None:
        self._runs = RunForms()
        self._others = lru_cache(maxsize=1)(others)

    def _for(self, path: str) -> Forms:
        run = path.rpartition("::")[0] or path
        return self._runs if "::" in path or (Path(run) / "manifest.json").is_file() else self._others()

    def directory(self, form: DirectoryForm) -> Iterator[Entry]:
        """Yield the entries of two directories."""
        return self._for(form.first).directory(form)

    def file(self, form: FileForm) -> Iterator[Entry]:
        """Yield the entries of two files."""
        return self._for(form.first).file(form)

    def neighbour(self, first: str, second: str, direction: int) -> tuple[str, str]:
        """Return the pair of files after or before this one."""
        return self._for(first).neighbour(first, second, direction)


class RunForms:
    """The forms over numscope runs."""

    def __init__(self) -> None:
        self._compare = lru_cache(maxsize=2)(_compare)

    def directory(self, form: DirectoryForm) -> Iterator[Entry]:
        """Yield the entries of two runs."""
        if form.folder not in FOLDERS:
            raise SettingsError(f"no folder {form.folder!r}: {', '.join(FOLDERS)}")
        wanted = in_range(form.steps)
        for row in self._compare(form.first, form.second):
            if row["folder"] == form.folder and wanted(row["step"]):
                error = error_of(row, form.metric)
                if above(error, form.metric, form.threshold):
                    yield _entry(row, form, error)

    def file(self, form: FileForm) -> Iterator[Entry]:
        """Yield the entry of one tensor."""
        first, second = _run_tensor(form.first), _run_tensor(form.second)
        for row in self._compare(first.run, second.run):
            if (row["target_name"], row["reference_name"]) == (first.name, second.name):
                error = error_of(row, form.metric)
                if above(error, form.metric, form.threshold):
                    yield _entry(row, form, error)

    def neighbour(self, first: str, second: str, direction: int) -> tuple[str, str]:
        """Return the tensor after or before this one."""
        target, reference = _run_tensor(first), _run_tensor(second)
        rows = self._compare(target.run, reference.run)
        every = list(dict.fromkeys((row["target_name"], row["reference_name"]) for row in rows))
        names = (target.name, reference.name)
        if names not in every:
            raise SettingsError(f"{target.name} is not a tensor of both runs")
        at = every.index(names) + (1 if direction > 0 else -1)
        if not 0 <= at < len(every):
            raise SettingsError("there is no further file in this direction")
        target_name, reference_name = every[at]
        return f"{target.run}::{target_name}", f"{reference.run}::{reference_name}"


def conclusion(entries: list[dict[str, Json]]) -> bytes:
    """Return entries as an .xlsx file."""
    try:
        import xlsxwriter
    except ImportError:
        raise MissingExtraError("xlsxwriter", "writing an .xlsx file") from None
    content = io.BytesIO()
    columns = [field.name for field in fields(Entry)]
    with xlsxwriter.Workbook(
        content, {"in_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    ) as book:
        sheet = book.add_worksheet("conclusion")
        sheet.write_row(0, 0, [name.replace("_", " ") for name in columns], book.add_format({"bold": True}))
        for row, entry in enumerate(entries, start=1):
            sheet.write_row(row, 0, [entry.get(name) for name in columns])
        sheet.autofilter(0, 0, max(len(entries), 1), len(columns) - 1)
        sheet.freeze_panes(1, 0)
    return content.getvalue()


def _compare(first: str, second: str) -> list[TableRow]:
    """Return the pairs of a comparison, each with the folder and module of its call."""
    from numscope.compare.comparison import compare

    comparison = compare(first, second)
    calls = {row["pair"]: row for row in comparison.calls.select(["pair", "module", "phase"]).to_pylist()}
    rows: list[TableRow] = comparison.pairs.to_pylist()
    for row in rows:
        call = calls[row["pair"]]
        gradient = row["slot"].startswith("parameters_grad")
        row["folder"] = "gradient" if gradient else call["phase"]
        row["module"] = call["module"] or ""
    return [row for row in rows if row["target_name"] and row["reference_name"]]


class _RunTensor(NamedTuple):
    """A tensor of a run, written `RUN::name`."""

    run: str
    name: str


def _run_tensor(text: str) -> _RunTensor:
    run, _, name = text.rpartition("::")
    if not run:
        raise SettingsError("write a tensor of a run as RUN::name, for example runs/a::Torch.exp.0.forward.output.0")
    return _RunTensor(run, name)


def _entry(row: TableRow, form: DirectoryForm | FileForm, error: float | None) -> Entry:
    place, _, index = row["slot"].partition(".")
    first, second = form.first.rpartition("::")[0] or form.first, form.second.rpartition("::")[0] or form.second
    return Entry(
        folder=row["folder"],
        epoch=None,
        step=row["step"],
        place="gradient" if row["folder"] == "gradient" else place,
        index=index,
        first_path=f"{first}::{row['target_name']}",
        second_path=f"{second}::{row['reference_name']}",
        metric=form.metric,
        error=error,
        module=row["module"],
        first_value=_value(row, "target"),
        second_value=_value(row, "reference"),
    )


def _value(row: TableRow, side: str) -> str:
    parts = [
        f"{word} {row[f'{side}_{word}']:.6g}" for word in ("min", "max", "mean") if row[f"{side}_{word}"] is not None
    ]
    return f"{row[f'{side}_dtype']} {row[f'{side}_shape']} " + ", ".join(parts)
