"""The command line: `numscope COMMAND …`, with a command's code loaded only when it is chosen.

Exit status: 0 for identical, equivalent or nothing found, 1 for diverged or found, 2 where it could not be done. An
error is one line on stderr; --debug, before the command or after it, shows where it came from.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import TextIO

from numscope.commands import available, module_of
from numscope.commands.grammar import Parser, parser_of, with_bare_json
from numscope.core.errors import InvalidSetting, NumscopeError, SettingsError, cure_of, describe
from numscope.core.language.chinese import say, translated
from numscope.core.untrusted import shown
from numscope.core.version import __version__

ABOUT = "Find the first operator at which two runs of a model stop agreeing, and why."


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit status."""
    strictness = _show_what_can_be_shown(sys.stdout)
    arguments = list(sys.argv[1:] if argv is None else argv)
    own = next((i for i, argument in enumerate(arguments) if not argument.startswith("-")), len(arguments))
    debug = "--debug" in arguments[:own]
    try:
        parser = _parser()
        parser.parse_args(arguments[:own])
        if own == len(arguments):
            print(parser.format_help(), end="", file=sys.stderr)
            return 2
        name = arguments[own]
        command = _load(name, debug)
        parser = parser_of(name, command)
        options = parser.parse_args(with_bare_json(arguments[own + 1 :]))
        debug = options.debug = options.debug or debug
    except SystemExit as leave:  # -h and --version
        return int(leave.code or 0)
    except NumscopeError as error:
        return _fail(error, debug)
    try:
        if name == "run" and strictness:
            _show_what_can_be_shown(sys.stdout, strictness)  # the stream is the script's from here on
        status = int(command.run(options))
        sys.stdout.flush()  # a reader that went away shows here, not after main
        return status
    except KeyboardInterrupt:
        print("numscope: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough (`numscope show run | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return _fail(error, debug)


def _show_what_can_be_shown(stream: TextIO, errors: str = "replace") -> str | None:
    """Let a stream that is not UTF-8 show ? for what it cannot show; return what it would have done instead."""
    if not isinstance(stream, io.TextIOWrapper) or stream.encoding.lower().replace("-", "") == "utf8":
        return None
    before = stream.errors
    stream.reconfigure(errors=errors)
    return before


def _parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:<10} {say(line)}" for name, line in available().items())
    parser = Parser(
        prog="numscope",
        usage="numscope [-h] [--version] [--debug] COMMAND …",
        description=f"{say(ABOUT)}\n\n{say('commands')}:\n{lines}",
        epilog=say("numscope COMMAND -h explains a command."),
    )
    parser.add_argument("--version", action="version", version=f"numscope {__version__}")
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    return parser


def _load(name: str, debug: bool) -> ModuleType:
    """Import a command; one that cannot be imported hinders no other."""
    known = available()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise SettingsError(f"there is no command {name!r}: {cure}")
    try:
        return importlib.import_module(module_of(name))
    except NumscopeError:
        raise
    except Exception as error:
        if debug:
            raise
        raise NumscopeError(f"the command {name} cannot be loaded ({error}); --debug shows where") from error


def _fail(error: Exception, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
        return 2
    if isinstance(error, InvalidSetting):
        message = error.on_command_line()
    elif isinstance(error, NumscopeError):
        message = str(error)
    elif isinstance(error, OSError) and (error.filename or cure_of(error)):
        message = describe(error)
    else:
        where = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        message = f"this is a fault in numscope ({where}): please report it with what --debug shows"
    print(f"numscope: {shown(translated(' '.join(message.split())))}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
