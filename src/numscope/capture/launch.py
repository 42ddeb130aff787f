"""The program that a user names after `numscope run … --`, run as Python would run it.

train.py --epochs 1                        a script
python train.py --epochs 1                 the same: the interpreter is the one that runs numscope
-m package.train --epochs 1                a module
torchrun --nproc-per-node 2 train.py       a command that is itself a Python script, found as the shell finds it
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from numscope.core.errors import SettingsError

_INTERPRETER = re.compile(r"python(\d+(\.\d+)?)?(\.exe)?")
_SHEBANG = re.compile(rb"#!.*python|#!/bin/sh\n'''exec' .*python")  # the second is pip's, where the path is long


@dataclass(frozen=True)
class Program:
    """A script or a module, with its arguments."""

    name: str
    arguments: tuple[str, ...]
    is_module: bool = False

    def run(self) -> None:
        """Run it in this process as `python name arguments…` does."""
        sys.argv = [self.name, *self.arguments]
        if self.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(self.name)))
            runpy.run_path(self.name, run_name="__main__")


def program(command: Sequence[str]) -> Program:
    """Return the program of a command line; raise SettingsError where it cannot be run under capture."""
    words = list(command)
    if words and _INTERPRETER.fullmatch(os.path.basename(words[0])):
        words = words[1:]
    if not words:
        raise SettingsError("no script given: numscope run --out RUN -- script.py args")
    if words[0] == "-m":
        if len(words) == 1:
            raise SettingsError("-m: give the module to run: numscope run --out RUN -- -m package.module args")
        return Program(words[1], tuple(words[2:]), is_module=True)
    if words[0].startswith("-"):
        raise SettingsError(
            f"{words[0]} is an option of Python, which is running already: leave it out, or set it in the environment"
        )
    if os.path.isfile(words[0]):
        return Program(words[0], tuple(words[1:]))
    executable = shutil.which(words[0]) if os.sep not in words[0] else None
    if executable is not None and _is_python(executable):
        return Program(executable, tuple(words[1:]))
    if executable is not None:
        raise SettingsError(f"{words[0]} is no Python script: give the script that it runs after --")
    raise SettingsError(f"{words[0]} is not a file: give the Python script to run after --")


def _is_python(path: str) -> bool:
    with open(path, "rb") as file:
        return _SHEBANG.match(file.read(4096)) is not None
