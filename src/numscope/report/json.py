"""Writes answers as strict JSON: to a file, or to standard output for `-`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from numscope.core.report import Report, plain
from numscope.report.files import STDOUT, output


def write_json(report: Report, path: str | os.PathLike[str]) -> None:
    """Write a report."""
    write_document(report.to_dict(), path)


def write_document(document: Mapping[str, object], path: str | os.PathLike[str]) -> None:
    """Write an answer of any command."""
    text = json.dumps(plain(document), indent=1, ensure_ascii=False, allow_nan=False)
    if path == STDOUT:
        print(text)
        return
    with output(path) as file:
        file.write_text(text + "\n", encoding="utf-8")
