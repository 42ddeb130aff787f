"""Print the completion script of a shell: commands, options, and what an option may be given.

  source <(numscope completion bash)                             # in ~/.bashrc
  source <(numscope completion zsh)                              # in ~/.zshrc, after compinit
  numscope completion fish > ~/.config/fish/completions/numscope.fish

Make it again after an upgrade.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from numscope.commands import available, grammar, module_of

HELP = "the completion script of a shell"
SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Option:
    """An option of a command, as a shell completes it."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    write = {"bash": bash, "zsh": zsh, "fish": fish}[args.shell]
    print(write(available(), {name: options_of(name) for name in available()}))
    return 0


def options_of(name: str) -> list[Option]:
    """Return the options that a command's parser knows, but for those that its help hides."""
    parser = grammar.parser_of(name, importlib.import_module(module_of(name)))
    return [
        Option(
            tuple(action.option_strings),
            " ".join((action.help or "").replace("%%", "%").split()),
            action.nargs != 0,
            tuple(map(str, action.choices or ())),
        )
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    ]


def bash(commands: Mapping[str, str], options: Mapping[str, list[Option]]) -> str:
    """Return the script for bash."""
    cases, values = [], []
    for name, known in options.items():
        flags = " ".join(flag for option in known for flag in option.names)
        cases.append(f"        {name}) flags={shlex.quote(flags)} ;;")
        for option in known:
            if option.choices:
                at = "|".join(f"{name}:{flag}" for flag in option.names)
                words = f"compgen -W {shlex.quote(' '.join(option.choices))}"
                values.append(f'        {at}) COMPREPLY=($({words} -- "$word")); return ;;')
    return f"""\
_numscope() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} flags= ; COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        COMPREPLY=($(compgen -W {shlex.quote(" ".join([*commands, "--help", "--version"]))} -- "$word")); return
    fi
    case "$command:${{COMP_WORDS[COMP_CWORD-1]}}" in
{chr(10).join(values)}
    esac
    case "$command" in
{chr(10).join(cases)}
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;
        *) COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}}
complete -o filenames -F _numscope numscope"""


def zsh(commands: Mapping[str, str], options: Mapping[str, list[Option]]) -> str:
    """Return the script for zsh."""
    described = " ".join(shlex.quote(f"{name}:{text}") for name, text in commands.items())
    cases = []
    for name, known in options.items():
        specs = " ".join(shlex.quote(_zsh_option(flag, option)) for option in known for flag in option.names)
        cases.append(f"        {name}) _arguments {specs} '*:file:_files' ;;")
    return f"""\
#compdef numscope
_numscope() {{
    if (( CURRENT == 2 )); then
        local -a commands=({described})
        _describe command commands
        return
    fi
    local command=${{words[2]}}
    shift words
    (( CURRENT-- ))
    case "$command" in
{chr(10).join(cases)}
    esac
}}
compdef _numscope numscope"""


def _zsh_option(flag: str, option: Option) -> str:
    text = option.help.replace("\\", "").replace("[", "(").replace("]", ")").replace(":", " -")
    value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files" if option.takes_value else ""
    return f"*{flag}[{text}]{value}"


def fish(commands: Mapping[str, str], options: Mapping[str, list[Option]]) -> str:
    """Return the script for fish."""
    lines = [
        f"complete -c numscope -n __fish_use_subcommand -f -a {name} -d {_fish(text)}"
        for name, text in commands.items()
    ]
    for name, known in options.items():
        for option in known:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.names)
            value = (
                f" -x -a {_fish(' '.join(option.choices))}" if option.choices else " -r" if option.takes_value else ""
            )
            seen = f"'__fish_seen_subcommand_from {name}'"
            lines.append(f"complete -c numscope -n {seen} {flags}{value} -d {_fish(option.help)}")
    return "\n".join(lines)


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
