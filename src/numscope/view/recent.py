"""The memory of the start page between visits: the runs that were opened, and the last fields of its forms."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from numscope.core.json_value import Json, items, members

_MOST = 24


def default_file() -> Path:
    """Return the file of the memory: $XDG_STATE_HOME/numscope/viewer.json."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "numscope" / "viewer.json"


class Remembered(NamedTuple):
    """The content of the memory."""

    runs: list[str]
    forms: dict[str, Json]  # by name, the fields of a form
    verdicts: dict[str, Json]  # by the path of a run, what it was last compared with, and the answer


class Memory:
    """A small JSON file, kept for convenience: no error of reading or writing it is raised."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file or default_file()

    def read(self) -> Remembered:
        """Return the content of the memory; empty where there is none."""
        try:
            content: Json = json.loads(self.file.read_text("utf-8"))
        except (OSError, ValueError):
            content = None
        fields = members(content)
        return Remembered(
            [path for path in items(fields.get("runs")) if isinstance(path, str)],
            members(fields.get("forms")),
            members(fields.get("verdicts")),
        )

    def add_runs(self, *paths: str) -> None:
        """Put these runs first among the recent ones."""
        before = self.read()
        self._write(before._replace(runs=[*paths, *(run for run in before.runs if run not in paths)][:_MOST]))

    def add_verdict(self, target: str, reference: str, verdict: str) -> None:
        """Remember the answer of a comparison, for both runs."""
        before = self.read()
        known = {path: before.verdicts[path] for path in before.runs if path in before.verdicts}
        for path, other in ((target, reference), (reference, target)):
            known[path] = {"with": other, "verdict": verdict, "target": path == target}
        self._write(before._replace(verdicts=known))

    def keep_form(self, name: str, fields: dict[str, Json]) -> None:
        """Remember the fields of a form."""
        before = self.read()
        self._write(before._replace(forms={**before.forms, name: fields}))

    def _write(self, content: Remembered) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.file.with_suffix(".tmp")
            fresh.write_text(json.dumps(content._asdict(), indent=1), "utf-8")
            fresh.replace(self.file)
        except OSError:
            pass


def described(paths: list[str], verdicts: dict[str, Json]) -> list[dict[str, object]]:
    """Return what a person chooses runs by: when each was captured, its size, and the last answer."""
    shown: list[dict[str, object]] = []
    for path in paths:
        try:
            manifest: Json = json.loads((Path(path) / "manifest.json").read_text("utf-8"))
            size = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
        except (OSError, ValueError):
            continue
        created = str(members(manifest).get("created") or "").replace("T", " ")[:16]
        shown.append({"path": path, "created": created, "bytes": size, "compared": verdicts.get(path)})
    return shown


def runs_near(folder: Path, most: int = 40) -> list[str]:
    """Return the runs in a folder and two levels below it: the folders with a manifest."""
    runs: list[str] = []
    try:
        for pattern in ("manifest.json", "*/manifest.json", "*/*/manifest.json"):
            for file in sorted(folder.glob(pattern)):
                runs.append(str(file.parent))
                if len(runs) >= most:
                    return runs
    except OSError:
        pass
    return runs
