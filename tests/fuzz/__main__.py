"""Fuzzes for so many seconds: `python -m tests.fuzz 600 [TARGET]`; with --atheris guided by the code that is reached.

A file that is neither read nor refused is kept in fuzz-found/, and ends it with status 1: make a test of it.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from numscope.core.errors import NumscopeError
from tests.fuzz.mutate import mutated
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

FOUND = Path("fuzz-found")
_SLOW = 20.0  # seconds in which a file of a few KB must have been read


def tried(target: Target, content: bytes, folder: Path) -> str:
    """Read one file; return what is wrong with that, or nothing."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as own, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            target.read(content, Path(own))
        except NumscopeError as error:
            return "more than a line" if len(str(error).splitlines()) > 1 else ""
        except Exception:
            return traceback.format_exc()
    return "slow" if time.perf_counter() - began > _SLOW else ""


def where(wrong: str) -> str:
    """Return what tells one fault from another: the class of the error and the innermost line of ours."""
    lines = re.findall(r'numscope/(\S+\.py)", line (\d+)', wrong)
    return f"{wrong.strip().splitlines()[-1].partition(':')[0]} at {':'.join(lines[-1])}" if lines else wrong


def fuzz(targets: list[Target], seconds: float, seed: int) -> int:
    """Try mutated files of all targets in turn; return how many were neither read nor refused."""
    rng, until = random.Random(seed), time.monotonic() + seconds
    tries, found = 0, set[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        good = {target.name: target.good(folder / "runs") for target in targets}
        while time.monotonic() < until:
            target = targets[tries % len(targets)]
            content = mutated(rng.choice(good[target.name]), rng)
            tries += 1
            wrong = tried(target, content, folder)
            key = f"{target.name}: {where(wrong)}"
            if wrong and key not in found:
                found.add(key)
                FOUND.mkdir(exist_ok=True)
                (FOUND / f"{len(found):03d}").write_bytes(content)
                (FOUND / f"{len(found):03d}.txt").write_text(f"{target.name}\n{wrong}")
                print(f"{key} {wrong.strip().splitlines()[-1][:100]}", file=sys.stderr)
    print(f"{tries} files, {len(found)} faults (seed {seed})")
    return len(found)


def guided(targets: list[Target], seconds: float) -> int:
    """Let atheris choose the files, a target after the other in a process of its own each."""
    import os

    import atheris  # type: ignore[import-not-found]

    found = 0
    for target in targets:
        child = os.fork()
        if child == 0:
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                corpus = folder / "corpus"
                corpus.mkdir()
                for number, content in enumerate(target.good(folder / "runs")):
                    (corpus / str(number)).write_bytes(content)

                def one(content: bytes, target: Target = target, folder: Path = folder) -> None:
                    if wrong := tried(target, content, folder):
                        raise AssertionError(f"{target.name}: {wrong}")

                atheris.instrument_all()
                limit = f"-max_total_time={max(1, int(seconds / len(targets)))}"
                atheris.Setup([sys.argv[0], limit, "-timeout=30", "-rss_limit_mb=4096", str(corpus)], one)
                atheris.Fuzz()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        found += status != 0
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float)
    parser.add_argument("target", nargs="?", default="")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--atheris", action="store_true")
    args = parser.parse_args()
    chosen = [target for target in TARGETS if args.target in target.name]
    return 1 if (guided(chosen, args.seconds) if args.atheris else fuzz(chosen, args.seconds, args.seed)) else 0


if __name__ == "__main__":
    sys.exit(main())
