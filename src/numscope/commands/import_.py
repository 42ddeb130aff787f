"""`numscope import SOURCE RUN`: turn another tool's dump into a run, so that all of numscope works on it.

The format is found by itself: msprobe (statistics, tensor, md5), ptdbg_ascend and torch_npu.hooks (JSON lines and their
.npy), Paddle's saving hook, hooktools, and plain folders of .npy, .npz, .pt and .safetensors files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "turn another tool's dump into a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", type=Path, metavar="SOURCE", help="the folder or file that the other tool wrote")
    parser.add_argument("run", type=Path, metavar="RUN", help="the run directory to write")
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        help="msprobe, ptdbg, torch_npu, saving_hook, hooktools or plain; default: found by itself",
    )
    parser.add_argument(
        "--trust-pickle",
        action="store_true",
        help="let old hooktools files run what they say while they are read; only where you trust them",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a run that is there")


def run(args: argparse.Namespace) -> int:
    """Read the dump and write the run."""
    from numscope.store.formats.detect import open_dump
    from numscope.store.formats.foreign import write_run

    dump = open_dump(args.source, args.format, args.trust_pickle)
    count = write_run(args.run, dump, args.overwrite)
    if "warning" in dump.notes:
        print(f"numscope: {dump.notes['warning']}", file=sys.stderr)
    print(f"{args.run}: {count} calls from a {dump.tool} dump", file=sys.stdout)
    return 0
