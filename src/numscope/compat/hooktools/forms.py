"""The two forms of hooktools' page, answered from its own folders and files for the viewer's pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from numscope.compat.hooktools import records
from numscope.compat.hooktools.comparer import Comparer, entries_of
from numscope.view.forms import DirectoryForm, Entry, FileForm, above


class HooktoolsForms:
    """Two traced folders, or two files of them."""

    def __init__(self, trust_pickle: bool = False) -> None:
        self._trust = trust_pickle

    def directory(self, form: DirectoryForm) -> Iterator[Entry]:
        """Yield the errors of two folders above the threshold, file by file."""
        comparer = Comparer(
            {
                "compare_mode": 0,
                "compare_directory_options": {
                    "compared_directory_1": form.first,
                    "compared_directory_2": form.second,
                    "compare_folder_name": form.folder,
                    "compare_epochs": form.epochs,
                    "compare_steps": form.steps,
                },
                "evaluation_metrics": [form.metric],
                "filter": {"global_filter": -1},
                "trust_pickle": self._trust,
            }
        )
        for entry in comparer.run():
            if above(entry.error, form.metric, form.threshold):
                yield entry

    def file(self, form: FileForm) -> Iterator[Entry]:
        """Yield the errors of two files above the threshold."""
        for entry in entries_of(Path(form.first), Path(form.second), form.metric, self._trust):
            if above(entry.error, form.metric, form.threshold):
                yield entry

    def neighbour(self, first: str, second: str, direction: int) -> tuple[str, str]:
        """Return the files after or before these, running on into the neighbouring step."""
        return str(records.neighbour(Path(first), direction)), str(records.neighbour(Path(second), direction))
