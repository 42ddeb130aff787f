"""`python -m numscope.compat.saving_hook.plot_rst --rst_path R.csv --target_name NAME [--values_per_step N]`: a line plot.

Draws the cosine similarity of the tensors whose names hold NAME, and the differences of mean and standard deviation, with
a dotted line where each step begins: after N values, or where the names of the tensors begin another micro step. The PNG
lies beside the csv.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from numscope.core.errors import MissingExtraError, NumscopeError, SettingsError

DRAWN = ("cosine similarity", "meanA - meanB", "stdA - stdB")


def plot(rst_path: Path, target_name: str, values_per_step: int | None = None) -> Path:
    """Draw, and return the file."""
    if not rst_path.is_file():
        raise SettingsError(f"{rst_path} does not exist: give a rank_R_rst.csv that hook_result_checker wrote")
    if values_per_step is not None and values_per_step < 1:
        raise SettingsError(f"--values_per_step {values_per_step}: give a number from 1 on")
    with rst_path.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if target_name in row["tensor_name"]]
    if not rows:
        raise SettingsError(f"no tensor of {rst_path} has {target_name!r} in its name")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "drawing a plot") from None
    if values_per_step is None:
        steps = [_micro_step(row["tensor_name"]) for row in rows]
        borders = [place for place in range(1, len(rows)) if steps[place] != steps[place - 1]]
    else:
        borders = list(range(values_per_step, len(rows), values_per_step))
    figure = Figure(figsize=(10, 8), layout="constrained")
    for axes, column in zip(figure.subplots(len(DRAWN), 1, sharex=True), DRAWN):
        axes.plot(range(len(rows)), [float(row[column] or "nan") for row in rows], linewidth=1, marker=".")
        for border in borders:
            axes.axvline(border - 0.5, linestyle=":", color="grey", linewidth=1)
        axes.set_ylabel(column)
    each = f", {values_per_step} a step" if values_per_step is not None else ""
    axes.set_xlabel(f"{target_name}: values in order{each}")
    file = rst_path.with_name(f"{rst_path.stem}_{re.sub(r'[^A-Za-z0-9_.-]', '_', target_name)}.png")
    figure.savefig(file)
    return file


def _micro_step(tensor_name: str) -> str:
    match = re.search(r"_micro_step_(\d+)", tensor_name)
    return match[1] if match else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="plot_rst", description=__doc__)
    parser.add_argument("--rst_path", type=Path, required=True)
    parser.add_argument("--target_name", required=True)
    parser.add_argument("--values_per_step", type=int, help="default: the micro steps in the tensors' names")
    args = parser.parse_args(argv)
    try:
        print(plot(args.rst_path, args.target_name, args.values_per_step))
    except NumscopeError as error:
        print(f"numscope: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
