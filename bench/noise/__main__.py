"""Measure rounding on this machine.

python -m bench.noise record FOLDER [--seconds N]    # the samples of every device here, as columns of numpy
python -m bench.noise table FOLDER… > FILE           # the table of accuracy of recorded folders
python -m bench.noise table FOLDER… --into FILE      # … of a few operators: their rows in a table that is there
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from bench.noise.table import rows
from numscope.compare.judge.rounding.accuracy import Row, read_rows, write_rows
from numscope.diagnose.accuracy.cases import operators
from numscope.diagnose.accuracy.data import Form
from numscope.diagnose.accuracy.devices import chip
from numscope.diagnose.accuracy.measuring import take
from numscope.diagnose.accuracy.samples import Amplified, Sample, amplified, cast

_COARSE = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
_GIVEN = tuple(10.0**-exponent for exponent in range(8, 0, -1))


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench.noise", description=__doc__)
    parser.add_argument("what", choices=("record", "table"))
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long, in all")
    parser.add_argument("--threads", type=int, nargs="*", help="of the CPU; default: one, and all")
    parser.add_argument("--only", nargs="*", default=operators(), metavar="OPERATOR")
    parser.add_argument("--samples", type=int, default=12, help="of each kind of inputs, at most")
    parser.add_argument("--into", type=Path, metavar="FILE", help="a table whose other rows stay as they are")
    options = parser.parse_args()
    if options.what == "table":
        measured = "\n".join(map(about, options.folders))
        if options.into is None:
            write_rows(rows(*options.folders), measured, sys.stdout)
        else:
            put_into(options.into, list(rows(*options.folders)), measured)
        return 0
    (folder,) = options.folders
    folder.mkdir(parents=True, exist_ok=True)
    record(folder, options.seconds, options.samples, options.threads, options.only)
    return 0


def put_into(file: Path, fresh: Sequence[Row], measured: str) -> None:
    """Write rows into a table of accuracy, in place of those of the same operators and chips."""
    lines = file.read_text(encoding="utf-8").splitlines()
    replaced = {(row.key, row.chip) for row in fresh}
    kept = [row for row in read_rows(lines, str(file)) if (row.key, row.chip) not in replaced]
    comments = [line.removeprefix("# ") for line in lines if line.startswith("#")]
    names = " ".join(sorted({row.key.operator for row in fresh}))
    with file.open("w", encoding="utf-8") as table:
        write_rows([*kept, *fresh], "\n".join([*comments, f"{names}: {measured}"]), table)


def about(folder: Path) -> str:
    """Return when and with what a folder was recorded."""
    facts = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value and name != "cpu")


def record(folder: Path, seconds: float, samples: int, threads: list[int] | None, only: Sequence[str]) -> None:
    """Write the samples of all devices of this machine, and the amplifications where it has a CPU alone."""
    cuda = torch.cuda.is_available()
    threads = threads or sorted({1, os.cpu_count() or 1})
    plans = [("cpu", count) for count in threads] + ([("cuda", threads[-1])] if cuda else [])
    end = time.perf_counter() + seconds
    for kind, count in plans:
        share = (end - time.perf_counter()) * (1.0 if kind == "cuda" or not cuda else 0.2)
        rows, failed = _samples(torch.device(kind), count, samples, time.perf_counter() + share, only)
        _write(folder / f"samples-{kind}-{count}.npz", rows)
        (folder / f"failed-{kind}-{count}.json").write_text(json.dumps(failed, indent=1), encoding="utf-8")
        print(f"{kind}, {count} threads: {len(rows)} samples, {len(failed)} failures", flush=True)
    facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    facts |= {"cpu": platform.processor() or platform.machine(), "date": time.strftime("%Y-%m-%d")}
    (folder / "about.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    if not cuda and len(only) == len(operators()):
        _write(folder / "amplified.npz", list(_amplified(max(2, samples // 4))))


def _samples(
    device: torch.device, threads: int, samples: int, until: float, only: Sequence[str]
) -> tuple[list[dict[str, object]], dict[str, str]]:
    torch.set_num_threads(threads if device.type == "cpu" else 1)
    failed: dict[str, str] = {}
    begin = time.perf_counter()
    where = {"kind": device.type, "chip": chip(device), "threads": threads}
    taken = take(device, until, failed, only, samples)
    rows = [{**where, "way": way.name, **_row(sample)} for way, sample in taken]
    print(f"{device.type}: {time.perf_counter() - begin:.0f} s", flush=True)
    return rows, failed


def _amplified(samples: int) -> Iterator[dict[str, object]]:
    for name in operators():
        for form in Form:
            for number in range(samples):
                yield from map(_row, amplified(name, form, number, _GIVEN))
    for dtype in _COARSE:
        for form in Form:
            for number in range(samples):
                yield from map(_row, cast(dtype, form, number, _GIVEN))


def _row(sample: Sample | Amplified) -> dict[str, object]:
    return {**sample._asdict(), **sample.sizes._asdict(), "form": sample.form.value, "sizes": None}


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    """Write columns; nothing but numpy is needed, which is there wherever torch is."""
    names = [name for name in rows[0] if name != "sizes"] if rows else []
    np.savez_compressed(path, allow_pickle=False, **{name: np.array([row[name] for row in rows]) for name in names})


if __name__ == "__main__":
    sys.exit(main())
