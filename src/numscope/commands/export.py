"""`numscope export RUN DEST --format …`: write a run in another tool's format.

  msprobe   step{N}/rank{R}/dump.json, stack.json, construct.json and dump_tensor_data: what msprobe compares and draws
  ptdbg     JSON lines and .npy files, as ptdbg_ascend's compare reads them
  npy       one file per kept tensor, under its name
  csv       calls.csv and tensors.csv (or the tensors alone, into DEST.csv)
  parquet   the same with sketches

What is not in the format is left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from numscope.core.errors import RunError, SettingsError, writing

HELP = "write a run in another tool's format"
FORMATS = ("msprobe", "ptdbg", "npy", "csv", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", help="the run to read")
    parser.add_argument("destination", type=Path, metavar="DEST", help="the folder to write; it must be new or empty")
    parser.add_argument("--format", metavar="FORMAT", required=True, help=", ".join(FORMATS))


def run(args: argparse.Namespace) -> int:
    """Write the run."""
    from numscope.store.formats import msprobe_export, npy_export, ptdbg_export, table_export
    from numscope.store.reader import open_run

    writers = {
        "msprobe": msprobe_export.export,
        "ptdbg": ptdbg_export.export,
        "npy": npy_export.export,
        "csv": table_export.export_csv,
        "parquet": table_export.export_parquet,
    }
    if args.format not in writers:
        raise SettingsError(f"--format {args.format}: there are {', '.join(FORMATS)}")
    source = open_run(args.run)
    destination = args.destination
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise RunError(f"{destination} is there already: give a folder that is new or empty")
    if args.format == "npy" and not npy_export.kept_slots(source):
        raise RunError(f"{args.run} keeps no tensors: capture it with --keep tensors, or --tensors PATTERN")
    with writing(destination):
        count = writers[args.format](source, destination)
    print(f"{destination}: {count} files")
    return 0
