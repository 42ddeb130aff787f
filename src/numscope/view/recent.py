"""What the start page remembers between visits: the runs that were opened, and what was typed into its forms."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_MOST = 24


def default_file() -> Path:
    """Return where the viewer remembers: $XDG_STATE_HOME/numscope/viewer.json."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "numscope" / "viewer.json"


class Memory:
    """A small JSON file; losing it loses nothing but convenience, so no fault of it is an error."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file or default_file()

    def read(self) -> dict[str, Any]:
        """Return what is remembered: {"runs": [path…], "forms": {name: fields}}."""
        try:
            content = json.loads(self.file.read_text("utf-8"))
        except (OSError, ValueError):
            content = {}
        content = content if isinstance(content, dict) else {}
        runs = [item for item in content.get("runs", []) if isinstance(item, str)]
        forms = content.get("forms", {})
        return {"runs": runs, "forms": forms if isinstance(forms, dict) else {}}

    def add_runs(self, *paths: str) -> None:
        """Put these runs at the head of the recent ones."""
        content = self.read()
        fresh = [str(path) for path in paths]
        content["runs"] = (fresh + [run for run in content["runs"] if run not in fresh])[:_MOST]
        self._write(content)

    def keep_form(self, name: str, fields: dict[str, Any]) -> None:
        """Remember what was typed into a form."""
        content = self.read()
        content["forms"][name] = fields
        self._write(content)

    def _write(self, content: dict[str, Any]) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.file.with_suffix(".tmp")
            fresh.write_text(json.dumps(content, indent=1), "utf-8")
            fresh.replace(self.file)
        except OSError:
            pass


def runs_near(folder: Path, most: int = 40) -> list[str]:
    """Return the runs in this folder and two levels below it: what a manifest of ours marks."""
    found: list[str] = []
    try:
        for pattern in ("manifest.json", "*/manifest.json", "*/*/manifest.json"):
            for file in sorted(folder.glob(pattern)):
                found.append(str(file.parent))
                if len(found) >= most:
                    return found
    except OSError:
        pass
    return found
