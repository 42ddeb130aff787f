"""`python -m numscope.compat.saving_hook.hook_result_checker --pathA A --pathB B`: compares two folders, file by file.

Writes `A/{tensors,grads}/compare_rst/rank_R_rst.csv`.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from numscope.compat.measures import Array, cosine, wide
from numscope.core.errors import NumscopeError, SettingsError

COLUMNS = tuple(
    name.strip()
    for name in """
    tensor_name, cosine similarity, meanA, meanB, meanA - meanB, stdA, stdB, stdA - stdB, varA, varB, varA - varB
    """.split(",")
)


def check(path_a: Path, path_b: Path) -> list[Path]:
    """Compare the files that both folders have; return the tables that were written."""
    for path in (path_a, path_b):
        if not path.is_dir():
            raise SettingsError(f"{path} does not exist: give a folder that register_saving_hook wrote")
    written = []
    for kind in ("tensors", "grads"):
        ranks_a, ranks_b = _ranks(path_a / kind), _ranks(path_b / kind)
        for rank in sorted(ranks_a.keys() & ranks_b.keys(), key=_index):
            written.append(_rank(kind, rank, ranks_a[rank], ranks_b[rank], path_a / kind / "compare_rst"))
        for rank in sorted(ranks_a.keys() ^ ranks_b.keys()):
            print(f"{kind}/{rank} is on one side only")
    if not written:
        raise SettingsError(f"{path_a} and {path_b} have no tensors/rank_R or grads/rank_R in common")
    return written


def _ranks(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    return {entry.name: entry for entry in folder.iterdir() if re.fullmatch(r"rank_\d+", entry.name) and entry.is_dir()}


def _index(name: str) -> int:
    match = re.search(r"(?:idx_|rank_)(?P<index>\d+)", name)
    return int(match["index"]) if match else 0


def _rank(kind: str, rank: str, folder_a: Path, folder_b: Path, results: Path) -> Path:
    names_a, names_b = ({file.name for file in folder.glob("*.npy")} for folder in (folder_a, folder_b))
    for label, only in (("A", names_a - names_b), ("B", names_b - names_a)):
        for name in sorted(only, key=_index):
            print(f"only in path{label}: {kind}/{rank}/{name}")
    results.mkdir(parents=True, exist_ok=True)
    file = results / f"{rank}_rst.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for name in _progress(sorted(names_a & names_b, key=_index), f"{kind} {rank}"):
            writer.writerow([name.removesuffix(".npy"), *_numbers(np.load(folder_a / name), np.load(folder_b / name))])
    return file


def _numbers(array_a: Array, array_b: Array) -> list[object]:
    a, b = wide(array_a), wide(array_b)
    similar = cosine(a, b) if array_a.shape == array_b.shape else ""  # of different shapes there is none
    numbers: list[object] = [similar]
    for measured in (np.mean, np.std, np.var):
        one, other = (float(measured(values)) if values.size else float("nan") for values in (a, b))
        numbers += [one, other, one - other]
    return numbers


def _progress(names: list[str], title: str) -> Iterable[str]:
    """Show a bar while going through the names, where there is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(names, title, console=console, disable=not console.is_terminal)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="hook_result_checker", description=__doc__)
    parser.add_argument("--pathA", type=Path, required=True)
    parser.add_argument("--pathB", type=Path, required=True)
    args = parser.parse_args(argv)
    try:
        for file in check(args.pathA, args.pathB):
            print(file)
    except NumscopeError as error:
        print(f"numscope: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
