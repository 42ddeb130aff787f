"""One grammar for all commands: the parser, and the options that several commands have.

An option has one name, one meaning and one help text wherever it stands: `tests/unit/commands/test_grammar.py` reads the
parsers of all commands and fails where the same option differs.
"""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from numscope.core.errors import SettingsError
from numscope.core.language.chinese import language, say

JSON = "--json"
_TO_STDOUT = "-"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others, and that leaves the lines of descriptions as they are."""

    def __init__(self, prog: str, description: str, usage: str | None = None, epilog: str | None = None) -> None:
        super().__init__(prog, usage, description, epilog, formatter_class=argparse.RawDescriptionHelpFormatter)

    def localise(self) -> None:
        """Put the help into the reader's language; examples stay as they are."""
        if language() == "en":
            return
        paragraphs = (self.description or "").split("\n\n")
        self.description = "\n\n".join(one if one.startswith("  ") else say(_one_line(one)) for one in paragraphs)
        for action in self._actions:
            if action.help and action.help != argparse.SUPPRESS:
                action.help = say(action.help)
        for group in self._action_groups:
            group.title = say(group.title or "")

    def error(self, message: str) -> NoReturn:
        _, _, unknown = message.partition("unrecognized arguments: ")
        if os.path.isdir(unknown):
            raise SettingsError(f"{unknown} is a directory: no file to write to, and one run too many")
        near = difflib.get_close_matches(unknown.partition("=")[0].split(" ")[0], self._option_string_actions, n=1)
        cure = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(f"{message.removeprefix('argument ')} ({cure}{self.prog} -h lists the arguments)")


def _one_line(paragraph: str) -> str:
    return " ".join(paragraph.split())


def parser_of(name: str, command: ModuleType) -> Parser:
    """Return the parser of a command, with what every command has."""
    parser = Parser(prog=f"numscope {name}", description=command.__doc__ or command.HELP)
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    parser.localise()
    return parser


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Declare the two runs of a comparison: the suspect first."""
    parser.add_argument("target", metavar="TARGET", help="the run under suspicion")
    parser.add_argument("reference", metavar="REFERENCE", help="the run that is right")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declare the one run that a command reads."""
    parser.add_argument("run_path", metavar="RUN", help="the run's directory, or its address (s3://…)")


def add_noise_and_map(parser: argparse.ArgumentParser) -> None:
    """Declare what a comparison may be told besides the two runs."""
    parser.add_argument(
        "--noise", action="append", default=[], metavar="RUN", help="the reference again, but for rounding"
    )
    parser.add_argument(
        "--map", metavar="FILE", help="TOML: which calls and slots belong together, and in which layout"
    )


def add_part(parser: argparse.ArgumentParser) -> None:
    """Declare the choice of steps and ranks."""
    for name in ("step", "rank"):
        parser.add_argument(
            f"--{name}", type=int, action="append", metavar="N", help=f"this {name} only (may be given again)"
        )


def add_html(parser: argparse.ArgumentParser) -> None:
    """Declare --html."""
    parser.add_argument("--html", metavar="FILE", help="write the answer as one HTML page")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare --json: to a file, or to standard output, where nothing else is printed then."""
    parser.add_argument(
        JSON,
        nargs="?",
        const=_TO_STDOUT,
        metavar="FILE",
        help="write the answer as JSON; without FILE, or with -, to standard output and nothing else",
    )


def with_bare_json(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--json RUN` read as `--json - RUN`: what follows is no file where it is a run."""
    read: list[str] = []
    for place, argument in enumerate(arguments):
        if argument == "--":
            return [*read, *arguments[place:]]
        read.append(argument)
        follows = arguments[place + 1] if place + 1 < len(arguments) else ""
        if argument == JSON and follows and (os.path.isdir(follows) or "://" in follows):
            read.append(_TO_STDOUT)
    return read
