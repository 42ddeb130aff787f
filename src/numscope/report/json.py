"""Writes the report as strict JSON."""

from __future__ import annotations

import json
import os

from numscope.core.report import Report
from numscope.report.files import STDOUT, output


def write_json(report: Report, path: str | os.PathLike[str]) -> None:
    """Write a report as strict JSON to a file, or to standard output for `-`."""
    text = json.dumps(report.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
    if path == STDOUT:
        print(text)
        return
    with output(path) as file:
        file.write_text(text + "\n", encoding="utf-8")
