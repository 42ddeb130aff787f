"""Damages the files of runs at random, and holds what the commands then say against what they said before.

    python -m tests.damage 200

Bytes are changed, files cut off, emptied, deleted, exchanged for those of another run, of another rank or of another kind,
and whole ranks exchanged. A command must say the same as before, or end with status 2 and name the file, or say that the
run is not complete and show a part of what it showed.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch

import numscope as ns
from numscope.__main__ import main as numscope
from tests.harms import Harm, cut, delete, empty, exchange, flip, overwrite


def exchange_within(chance: random.Random, file: Path, _: Path) -> None:
    """Put another file of the run in this one's place: of the other rank, or of another kind."""
    run = next(parent for parent in file.parents if parent.name == "harmed")
    others = [one for one in sorted(run.rglob("*")) if one.is_file() and one.suffix == file.suffix and one != file]
    if others:
        shutil.copy(chance.choice(others), file)


def exchange_rank(_c: random.Random, file: Path, other: Path) -> None:
    """Put the whole rank of another run in this one's place."""
    ours = next((parent for parent in file.parents if parent.name.startswith("rank")), None)
    if ours is not None:
        theirs = next(parent for parent in other.parents if parent.name == ours.name)
        shutil.rmtree(ours)
        shutil.copytree(theirs, ours)


ALL: list[Harm] = [flip, flip, overwrite, cut, exchange, exchange_within, exchange_rank, delete, empty]


def make_run(path: Path, seed: int, ended: bool = True) -> None:
    """Capture a run of two ranks, one after the other; that of a job which was killed in its last step, if not `ended`."""
    for rank in range(2):
        torch.manual_seed(seed + rank)
        model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.GELU(), torch.nn.Linear(6, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with ranks(rank):
            cap = ns.capture(path, model, keep="tensors", on_error="raise")
            cap.start()
            for step in range(3):
                model(torch.randn(3, 6)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if ended or step < 2:
                    cap.step()
            if not ended:
                cap._recorder.flush()
                cap._recorder.writer.flush()  # wait for the writer's thread
                shutil.copytree(path, path.with_name("copy"), dirs_exist_ok=True)
            cap.close()
    if not ended:
        shutil.rmtree(path)
        path.with_name("copy").rename(path)


@contextlib.contextmanager
def ranks(rank: int):  # type: ignore[no-untyped-def]
    """Be one of two ranks."""
    import os

    before = dict(os.environ)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass
class Said:
    """What a command said."""

    status: int
    out: str
    err: str


def said(*words: object) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = numscope([str(word) for word in words])
    return Said(status, out.getvalue(), err.getvalue())


def commands(run: Path, reference: Path) -> list[tuple[object, ...]]:
    return [
        ("show", run),
        ("show", run, "*", "--stack", "--top", "0"),
        ("check", run),
        ("compare", run, reference),
        ("weights", run, reference),
    ]


def judge(now: Said, before: Said, file: Path) -> str:
    """Return what came of a damage for one command: the same, named, a part, or what is wrong."""
    if (now.status, now.out) == (before.status, before.out):
        return "the same"
    named = [*file.parts[-2:], file.name.partition(".")[0], "rank0", "rank1", "manifest.json"]
    if now.status == 2 and not now.out:
        if len(now.err.splitlines()) == 1 and any(part in now.err for part in named):
            return "named"
        return f"an error that names nothing: {now.err[-300:]}"
    if any(word in now.out for word in ("cut off", "incomplete", "damaged", "is missing")):
        return "a part, and says so"
    lines = zip_longest(before.out.splitlines(), now.out.splitlines())
    return f"silently another: {next((pair for pair in lines if pair[0] != pair[1]), now.status)}"


def damage(count: int, seed: int = 4) -> tuple[Counter[str], list[str]]:
    """Do so many damages; return how often each came about, and what is wrong."""
    found: Counter[str] = Counter()
    wrong = []
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for ended in (True, False):
            base = folder / ("ended" if ended else "killed")
            base.mkdir()
            make_run(base / "run", 0, ended)
            make_run(base / "other", 50, ended)
            harmed = base / "harmed"
            shutil.copytree(base / "run", harmed)
            before = [said(*words) for words in commands(harmed, base / "other")]
            files = sorted(path.relative_to(harmed) for path in harmed.rglob("*") if path.is_file())
            for number in range(count // 2):
                shutil.rmtree(harmed)
                shutil.copytree(base / "run", harmed)
                file, harm = chance.choice(files), chance.choice(ALL)
                harm(chance, harmed / file, base / "other" / file)
                results = []
                for words, usual in zip(commands(harmed, base / "other"), before):
                    result = judge(said(*words), usual, file)
                    results.append(result)
                    if result not in ("the same", "named", "a part, and says so"):
                        wrong.append(f"{base.name} {number}: {harm.__name__} {file}: {words[0]}: {result}")
                best = next(one for one in ("named", "a part, and says so", *results) if one in results)
                found[best] += 1
    return found, wrong


def main() -> int:
    count = int(sys.argv[1]) if sys.argv[1:] else 200
    found, wrong = damage(count)
    for line in wrong:
        print(line)
    print(f"{count} damages: " + ", ".join(f"{many} {what}" for what, many in found.most_common()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
