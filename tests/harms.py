"""Ways to harm a file of a run: what the tests of damaged runs draw from."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

Harm = Callable[[random.Random, Path, Path], None]  # the file, and the same of another run


def flip(chance: random.Random, file: Path, _: Path) -> None:
    content = bytearray(file.read_bytes())
    for _n in range(chance.choice([1, 1, 3])):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def overwrite(chance: random.Random, file: Path, _: Path) -> None:
    content = bytearray(file.read_bytes())
    at = chance.randrange(len(content))
    content[at : at + 64] = bytes(len(content[at : at + 64]))
    file.write_bytes(content)


def cut(chance: random.Random, file: Path, _: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(len(content))])


def exchange(_c: random.Random, file: Path, other: Path) -> None:
    shutil.copy(other, file)


def delete(_c: random.Random, file: Path, _: Path) -> None:
    file.unlink()


def empty(_c: random.Random, file: Path, _: Path) -> None:
    file.write_bytes(b"")
