"""The Comparer: compares two traced folders, two files or two lists of files by hooktools' metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from numscope.compat.hooktools import records
from numscope.compat.hooktools.options import NameFilter, Settings, listed, load, one_of, section, warn_unused_keys
from numscope.core.errors import MissingExtraError, SettingsError
from numscope.view.forms import METRICS, Entry, in_range

TOP = 100
_KEYS = set(
    """
    compare_mode compare_directory_options compare_file_options compare_file_list_options compare_by_order
    compare_both_file compare_specifiy_modules evaluation_metrics skip_nn_module skip_non_nn_module filter
    show_max_error_only auto_conclusion verbose trust_pickle
    """.split()
)
_DIRECTORY_KEYS = set(
    """
    compared_directory_1 compared_directory_2 compare_folder_name compare_epochs compare_steps only_compare_input
    only_compare_output
    """.split()
)

Pair = tuple[Path, Path]


class Comparer:
    """Compares by its settings; `entries` are the errors found, `conclusion` the greatest of them."""

    def __init__(self, config: str | Path | Settings) -> None:
        settings = load(config)
        warn_unused_keys(settings, _KEYS, "comparer settings")
        self._settings = settings
        self._mode = one_of(settings, "compare_mode", (0, 1, 2), 0)
        self._metrics = _metrics(settings.get("evaluation_metrics", ["RMSE"]))
        self._filter = section(settings, "filter")
        warn_unused_keys(self._filter, {"global_filter", *(f"{metric}_filter" for metric in METRICS)}, "filter")
        self._wants = NameFilter(section(settings, "compare_specifiy_modules"))
        self._directory = section(settings, "compare_directory_options")
        warn_unused_keys(self._directory, _DIRECTORY_KEYS, "compare_directory_options")
        self._trust = bool(settings.get("trust_pickle", False))
        self.entries: list[Entry] = []
        self.missing: list[str] = []

    def compare(self) -> list[Entry]:
        """Compare, print each error and the conclusion, and return the errors."""
        self.entries = list(self.run())
        for entry in self.entries:
            print(line(entry))
        for path in self.missing:
            print(f"only on one side: {path}")
        if self._settings.get("auto_conclusion", True):
            print(f"conclusion: the {min(TOP, len(self.entries))} greatest of {len(self.entries)} errors")
            for entry in self.conclusion:
                print(f"  {line(entry)}")
        return self.entries

    @property
    def conclusion(self) -> list[Entry]:
        """The hundred greatest errors."""
        return greatest(self.entries)

    def run(self) -> Iterator[Entry]:
        """Yield the errors, one after the other."""
        for first, second in self._pairs():
            found = [entry for entry in self._file(first, second) if self._above(entry)]
            if self._settings.get("show_max_error_only", False):
                best: dict[str, Entry] = {}
                for entry in found:
                    if entry.metric not in best or rank(entry) < rank(best[entry.metric]):
                        best[entry.metric] = entry
                found = list(best.values())
            yield from found

    def _pairs(self) -> Iterator[Pair]:
        self.missing = []
        if self._mode == 0:
            yield from self._directories()
            return
        if self._mode == 1:
            options = section(self._settings, "compare_file_options")
            first, second = ([options.get(f"compared_file_{side}")] for side in (1, 2))
        else:
            options = section(self._settings, "compare_file_list_options")
            first, second = (listed(options.get(f"compared_file_list_{side}")) for side in (1, 2))
        if not first or len(first) != len(second) or not all((*first, *second)):
            raise SettingsError(
                f"compare_mode {self._mode} needs as many files on one side as on the other: {[first, second]}"
            )
        yield from ((Path(str(a)), Path(str(b))) for a, b in zip(first, second))

    def _directories(self) -> Iterator[Pair]:
        options = self._directory
        for side in (1, 2):
            if not options.get(f"compared_directory_{side}"):
                raise SettingsError(f"compare_directory_options: compared_directory_{side} is missing")
        kind = str(options.get("compare_folder_name") or "forward")
        epochs, steps = (in_range(str(options.get(key) or "")) for key in ("compare_epochs", "compare_steps"))

        def by_step(root: object) -> dict[tuple[int, int], records.StepFolder]:
            folders = records.step_folders(Path(str(root)), kind)
            return {(one.epoch, one.step): one for one in folders if epochs(one.epoch) and steps(one.step)}

        first, second = (by_step(options[f"compared_directory_{side}"]) for side in (1, 2))
        self.missing += [str(folder.path) for key, folder in first.items() if key not in second]
        self.missing += [str(folder.path) for key, folder in second.items() if key not in first]
        for key in sorted(first.keys() & second.keys()):
            yield from self._step(first[key].files(), second[key].files())

    def _step(self, first: Sequence[Path], second: Sequence[Path]) -> Iterator[Pair]:
        if self._settings.get("compare_by_order", True):
            yield from zip(first, second)
            self.missing += [str(file) for file in [*first[len(second) :], *second[len(first) :]]]
            return
        here, there = self._by_name(first), self._by_name(second)
        for key, file in here.items():
            if key in there:
                yield file, there[key]
        if not self._settings.get("compare_both_file", True):
            self.missing += [str(file) for key, file in here.items() if key not in there]
            self.missing += [str(file) for key, file in there.items() if key not in here]

    def _by_name(self, files: Sequence[Path]) -> dict[tuple[str, int], Path]:
        found: dict[tuple[str, int], Path] = {}
        counts: dict[str, int] = {}
        for file in files:
            name = str(records.read(file, self._trust).get("module_name"))
            found[name, counts.get(name, 0)] = file
            counts[name] = counts.get(name, 0) + 1
        return found

    def _file(self, first: Path, second: Path) -> Iterator[Entry]:
        record = records.read(first, self._trust)
        name = str(record.get("module_name"))
        is_function = name.startswith("torch.")
        if self._settings.get("skip_non_nn_module" if is_function else "skip_nn_module", False) or not self._wants(
            name
        ):
            return
        only_input = self._directory.get("only_compare_input", False)
        only_output = self._directory.get("only_compare_output", False)
        for metric in self._metrics:
            for entry in entries_of(first, second, metric, self._trust):
                if not ((only_input and entry.place != "input") or (only_output and entry.place != "output")):
                    yield entry

    def _above(self, entry: Entry) -> bool:
        own = self._filter.get(f"{entry.metric}_filter")
        if entry.error is None or math.isnan(entry.error):
            return True
        threshold = float(str(own if own is not None else self._filter.get("global_filter") or 0))
        if entry.metric != "CS":
            return entry.error > threshold
        return entry.error < threshold if own is not None else 1 - entry.error > threshold


def _metrics(value: object) -> list[str]:
    names = [str(name) for name in listed(value)]
    for name in names:
        if name not in METRICS:
            raise SettingsError(f"evaluation_metrics: there is no {name!r}: give some of {', '.join(METRICS)}")
    if not names:
        raise SettingsError(f"evaluation_metrics is empty: give some of {', '.join(METRICS)}")
    return names


def entries_of(first: Path, second: Path, metric: str, trust_pickle: bool = False) -> Iterator[Entry]:
    """Yield an entry for every value of two files."""
    if metric not in METRICS:
        raise SettingsError(f"there is no metric {metric!r}: give one of {', '.join(METRICS)}")
    one, other = records.read(first, trust_pickle), records.read(second, trust_pickle)
    others = {(value.place, value.index): value.array for value in records.values(other)}
    epoch, step = (_number(part) for part in first.parts[-3:-1]) if len(first.parts) > 3 else (None, None)
    for value in records.values(one):
        against = others.get((value.place, value.index))
        if against is None:
            continue
        yield Entry(
            folder=first.parts[-4] if len(first.parts) > 3 else "",
            epoch=epoch,
            step=step,
            place=value.place,
            index=value.index,
            first_path=str(first),
            second_path=str(second),
            metric=metric,
            error=records.error_of(value.array, against, metric),
            module=str(one.get("module_name")),
            first_value=records.describe(value.array),
            second_value=records.describe(against),
        )


def _number(part: str) -> int | None:
    digits = part.removeprefix("epoch").removeprefix("step")
    return int(digits) if digits.lstrip("-").isdecimal() else None


def rank(entry: Entry) -> float:
    """Return the key that sorts the worst entry first; an unknown error counts as the worst."""
    if entry.error is None or math.isnan(entry.error):
        return -math.inf
    return entry.error if entry.metric == "CS" else -entry.error


def greatest(entries: Sequence[Entry], count: int = TOP) -> list[Entry]:
    """Return the worst entries."""
    return sorted(entries, key=rank)[:count]


def line(entry: Entry) -> str:
    """Return an entry as one line of the log."""
    place = f"{entry.folder} epoch {entry.epoch} step {entry.step} {entry.place}.{entry.index}"
    sides = f"{entry.first_path} {entry.first_value} | {entry.second_path} {entry.second_value}"
    return f"{place} {entry.module} {entry.metric} {entry.error} | {sides}"


def write_conclusion(entries: Sequence[Entry], path: Path) -> None:
    """Write the hundred worst entries as an .xlsx file."""
    try:
        import xlsxwriter
    except ImportError:
        raise MissingExtraError("xlsxwriter", "writing an .xlsx file") from None
    with xlsxwriter.Workbook(path, {"nan_inf_to_errors": True}) as book:
        sheet = book.add_worksheet("conclusion")
        sheet.write_row(0, 0, list(Entry.__dataclass_fields__))
        for row, entry in enumerate(greatest(entries), 1):
            sheet.write_row(row, 0, [getattr(entry, name) for name in Entry.__dataclass_fields__])
