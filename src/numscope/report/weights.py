"""Writes the answer of `numscope weights` as CSV and as one HTML file, and reads one that was written as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa

from numscope.core.errors import RunError
from numscope.core.json_value import Json, JsonObject, members
from numscope.core.untrusted import check_size
from numscope.report.csv import write_csv
from numscope.report.files import output
from numscope.weights.pair import FORMAT, Weights

_COLUMNS = ("a", "b", "relation", "relative", "verdict", "fault", "reason", "repair")
_URGENT = ("diverged", "incomplete", "equivalent", "identical")  # verdicts of pairs, the first to be shown
_FEWEST = 100  # pairs that a file has in any case


def write_weights_csv(answer: Weights, path: str | os.PathLike[str]) -> None:
    """Write a row per pair; unknown values are empty."""
    rows = [pair.to_dict() for pair in answer.pairs]
    columns: dict[str, pa.Array] = {}
    for name in _COLUMNS:
        values = [" ".join(row[name]) if name in ("a", "b") else row[name] for row in rows]
        if name == "relative":
            columns[name] = pa.array([None if isinstance(v, str) else v for v in values], pa.float64())
        else:
            columns[name] = pa.array(values, pa.string())
    write_csv(pa.table(columns), path)


def write_weights_html(answer: Weights, path: str | Path) -> None:
    """Write the answer as one HTML file."""
    text = render(answer)
    with output(path) as file:
        file.write_text(text, encoding="utf-8")


def render(answer: Weights) -> str:
    """Return the answer as the text of one HTML file: of many pairs, those that matter most."""
    from numscope.report.html import LARGEST, page

    content = answer.to_dict()
    pairs: list[JsonObject] = content["pairs"]
    urgent = sorted(range(len(pairs)), key=lambda number: _URGENT.index(pairs[number]["verdict"]))
    held = len(pairs)
    while True:
        content["pairs"] = [pairs[number] for number in sorted(urgent[:held])]
        if held < len(pairs):
            content["shown"] = {"pairs": held, "of_pairs": len(pairs)}
        text = page({"document": content}, f"numscope weights: {answer.verdict}")
        if len(text.encode()) <= LARGEST or held < _FEWEST:
            return text
        held //= 2


def read_weights_json(path: str | os.PathLike[str]) -> JsonObject:
    """Return an answer that `numscope weights --json` wrote."""
    try:
        check_size(os.stat(path).st_size, path)
        content: Json = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}): name what `numscope weights --json` wrote") from None
    except (ValueError, RecursionError):
        raise RunError(f"{path} is not JSON: name what `numscope weights --json` wrote") from None
    answer = members(content)
    lists = all(isinstance(answer.get(name), list) for name in ("pairs", "missing", "extra", "unjudged"))
    if answer.get("format") != FORMAT or not lists:
        raise RunError(f"{path} is no answer of numscope weights: name what `numscope weights --json` wrote")
    return answer
