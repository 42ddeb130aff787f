"""Writes cli.md and api.md: every command and option from the parsers, every public name from its signature and docstring.

python docs/reference/make_reference.py            write both pages
python docs/reference/make_reference.py --check    fail where one would change
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import sys
from pathlib import Path

os.environ["NUMSCOPE_LANG"] = "en"

import numscope as ns
from numscope.commands import COMMANDS, available, grammar, module_of

FOLDER = Path(__file__).parent
WIDTH = 110


def cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def invocation(action: argparse.Action) -> str:
    """Return an argument as it is typed."""
    if not action.option_strings:
        return f"`{action.metavar}`"
    if action.nargs == 0:
        return ", ".join(f"`{flag}`" for flag in action.option_strings)
    value = action.metavar or "{" + ",".join(map(str, action.choices or ())) + "}"
    value = f"[{value}]" if action.nargs == "?" else f"[{value} ...]" if action.nargs == "*" else value
    return cell(", ".join(f"`{flag} {value}`" for flag in action.option_strings))


def cli() -> str:
    """Return the page of the command line."""
    lines = ["# The command line", "", "<!-- python docs/reference/make_reference.py -->", ""]
    lines += ["`--debug` shows where an error came from, and `-h` explains, on every command.", ""]
    lines += ["| command | job |", "|---|---|"]
    lines += [f"| [{name}](#{name}) | {COMMANDS[name]} |" for name in available()]
    for name in available():
        module = importlib.import_module(module_of(name))
        parser = grammar.parser_of(name, module)
        lines += ["", f"## {name}", "", f"{sentence(COMMANDS[name])}", "", "| argument | meaning |", "|---|---|"]
        for action in parser._actions:
            if action.help != argparse.SUPPRESS and not {"-h", "--debug"} & set(action.option_strings):
                lines.append(f"| {invocation(action)} | {cell(action.help)} |")
    return "\n".join(lines) + "\n"


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def api() -> str:
    """Return the page of the public names."""
    lines = ["# Python", "", "<!-- python docs/reference/make_reference.py -->", ""]
    lines += ["`import numscope as ns` loads no framework; each name is loaded when it is first used.", ""]
    imports = re.findall(r"from ([\w.]+) import (\w+) as", Path(ns.__file__).read_text())
    sources = {name: module for module, name in imports}  # a name that is a package too is imported there for the types
    for name in sorted(set(ns.__all__) - {"__version__"}, key=lambda one: (one[0].isupper(), one)):
        found = getattr(ns, name)
        target = getattr(importlib.import_module(sources[name]), name) if inspect.ismodule(found) else found
        lines += [f"## ns.{name}", ""]
        if not (inspect.isclass(target) and issubclass(target, Exception)):
            lines += ["```python", signature(name, target), "```", ""]
        lines += [paragraph(inspect.getdoc(target) or ""), ""]
    lines += ["## numscope.testing", ""]
    testing = importlib.import_module("numscope.testing")
    for name in sorted(testing.__all__):
        target = getattr(testing, name)
        lines += ["```python", signature(name, target), "```", "", paragraph(inspect.getdoc(target) or ""), ""]
    return "\n".join(lines).rstrip() + "\n"


def signature(name: str, target: object) -> str:
    """Return a call with its arguments, one a line where they don't fit into one."""
    found = inspect.signature(target)  # type: ignore[arg-type]
    parts: list[str] = []
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        default = "" if parameter.default is parameter.empty else f"={shown(parameter.default)}"
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts and not any(p.startswith("*") for p in parts):
            parts.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        parts.append(f"{stars}{parameter.name}{default}")
    line = f"{name}({', '.join(parts)})"
    return line if len(line) <= WIDTH else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + ")"


def shown(default: object) -> str:
    text = repr(default)
    return text if len(text) < 40 and "<" not in text else "..."


def paragraph(text: str) -> str:
    """Return a docstring, wrapped, examples as code."""
    import textwrap

    parts = []
    for block in inspect.cleandoc(text).split("\n\n"):
        if block.startswith("    "):
            parts.append("```python\n" + textwrap.dedent(block) + "\n```")
        else:
            one = " ".join(block.split())
            for sentence_ in one.replace(". ", ".\n").splitlines():
                parts.append("\n".join(textwrap.wrap(sentence_, WIDTH, break_long_words=False)))
    return "\n".join(parts)


PAGES = {"cli.md": cli, "api.md": api}

if __name__ == "__main__":
    stale = []
    for name, make in PAGES.items():
        text, path = make(), FOLDER / name
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(name)
    if stale:
        sys.exit(f"{', '.join(stale)}: python docs/reference/make_reference.py writes them anew")
