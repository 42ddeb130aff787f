"""The results of a comparison, or of a part of it: four tables, to which the steps of ranks are added in any order.

A part in a folder is these tables as files, and `part.json`, which says where the rows of each place stand in them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa

from numscope.compare.judge.findings import Weight
from numscope.compare.parts.records import from_text, to_text
from numscope.compare.parts.rows import Key, Part, Rows, Scratch, Stored
from numscope.compare.ranking import findings_table
from numscope.compare.schema import CALLS, FINDINGS, PAIRS, PLACES
from numscope.compare.steps import PlacedOrigin, StepResult, StepSummary
from numscope.core.errors import RunError
from numscope.core.json_value import JsonObject
from numscope.store.files import place

_SCHEMAS: Final = {"calls": CALLS, "pairs": PAIRS, "findings": FINDINGS, "places": PLACES}
_MOVED: Final = {"calls": ("pair", "parent"), "pairs": ("pair",)}  # columns that hold numbers of rows of `calls`
INDEX: Final = "part.json"
FORMAT: Final = "numscope.part/1"


@dataclass(frozen=True)
class Files:
    """The results of a part as the content of its files, to be sent to another machine."""

    content: dict[str, bytes]


class Results:
    """The four tables; `folder`: where they are written, else they are in memory while they are few."""

    def __init__(self, folder: Path | None = None) -> None:
        self._tables = {
            name: Rows(schema, moved=_MOVED.get(name, ()), folder=folder, name=name)
            for name, schema in _SCHEMAS.items()
        }
        self._folder = folder
        self.calls, self.pairs = self._tables["calls"], self._tables["pairs"]
        self.findings, self._places = self._tables["findings"], self._tables["places"]
        self._ended = False
        self._scratch: Scratch | None = None

    def add(self, result: StepResult) -> None:
        """Add a step of a rank."""
        summary = result.summary
        key = Key(summary.step, summary.rank)
        beyond = [PlacedOrigin(result.beyond, 0.0, Weight.PROVEN)] if result.beyond is not None else []
        found = [
            findings_table(result.origins, "origin"),
            findings_table(result.rearranged, "rearranged"),
            findings_table(beyond, "beyond"),
        ]
        self.calls.add(result.calls, key)
        self.pairs.add(result.pairs, key)
        self.findings.add(pa.concat_tables(found), key)
        self._places.add(pa.Table.from_pylist([{**key._asdict(), "text": to_text(summary)}], PLACES), key)

    def end(self) -> None:
        """Say that all was added."""
        if self._ended:
            return
        self._ended = True
        to_files = self._folder is not None
        self.calls.end(to_files=to_files)
        shifts = self.calls.begins()
        self.calls.end(shifts)
        self.pairs.end(shifts, to_files=to_files)
        self.findings.end(to_files=to_files)
        self._places.end(to_files=to_files)

    def covers(self, places: Iterable[tuple[int, int]]) -> bool:
        """Tell whether these are the results of those steps of ranks, each once; those of all ranks joined are rank 0's."""
        wanted = [Key(step, max(rank, 0)) for step, rank in places]
        return sorted(part.key for part in self._places.parts) == sorted(wanted)

    def summaries(self) -> Iterator[StepSummary]:
        """Give the summary of each step of each rank, in order."""
        texts = chain.from_iterable(part["text"].to_pylist() for part in self._places.batches(["text"]))
        return (from_text(StepSummary, text) for text in texts)

    def folder(self) -> Path:
        """Return a folder for the files of parts that were made elsewhere, which goes with these results."""
        if self._folder is None and self._scratch is None:
            self._scratch = Scratch()
            for rows in self._tables.values():
                rows.holds = self._scratch
        return self._folder or Path(self._scratch.name if self._scratch is not None else "")

    # Files ----------------------------------------------------------------------------------------------------------

    def write(self, facts: JsonObject) -> None:
        """Write the index beside the tables' files, which says whose they are."""
        assert self._folder is not None
        self.end()
        index = {name: [_entry(part, self._folder) for part in rows.parts] for name, rows in self._tables.items()}
        document = {"format": FORMAT, **facts, "tables": index}
        place(self._folder / INDEX, json.dumps(document, ensure_ascii=False).encode(), replace=True)

    def attach(self, folder: Path, facts: JsonObject | None = None) -> None:
        """Add the results of a part that stands in a folder; its files stay there."""
        tables = (facts if facts is not None else read_facts(folder))["tables"]
        for name, rows in self._tables.items():
            rows.attach([_part(folder, entry) for entry in tables[name]])


def _entry(part: Part, folder: Path) -> JsonObject:
    assert isinstance(part.held, Stored)
    file = os.path.relpath(part.held.file, folder)
    return {**part.key._asdict(), "rows": part.num_rows, **asdict(part.held), "file": file}


def _part(folder: Path, entry: JsonObject) -> Part:
    if Path(entry["file"]).is_absolute() or ".." in Path(entry["file"]).parts:
        raise RunError(f"{folder / INDEX} is damaged: compare that part again")
    stored = Stored(str(folder / entry["file"]), int(entry["group"]), int(entry["offset"]))
    return Part(Key(int(entry["step"]), int(entry["rank"])), int(entry["rows"]), stored)


def read_facts(folder: Path) -> JsonObject:
    """Return what a part says of itself."""
    try:
        facts: JsonObject = json.loads((folder / INDEX).read_bytes())
        if facts["format"] != FORMAT:
            raise RunError(f"{folder} is in the format {facts['format']}, this numscope reads {FORMAT}: compare again")
    except OSError:
        raise RunError(
            f"{folder} is no part of a comparison, or was cut off: `numscope compare TARGET REFERENCE --part I/N --out DIR` "
            "writes one"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{folder / INDEX} is damaged: compare that part again") from None
    return facts


def packed(folder: Path) -> Files:
    """Return the files of a part."""
    return Files({path.name: path.read_bytes() for path in sorted(folder.iterdir())})


def unpacked(files: Files, folder: Path) -> None:
    """Write the files of a part into a folder."""
    folder.mkdir(parents=True)
    for name, content in files.content.items():
        (folder / name).write_bytes(content)
