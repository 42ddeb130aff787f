"""One grammar: the table command × option, read from the parsers, says one thing of each option; what breaks it is named."""

from __future__ import annotations

import argparse
import importlib
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from numscope.commands import COMMANDS, available, grammar, module_of

# Commands without an answer that a program could want: they run a job, serve, convert, or print for a shell.
WITHOUT_JSON = {"run", "view", "demo", "completion", "mcp", "import", "export"}
# The same name for two jobs, each with the reason; add to it only where no other name would do.
TWO_MEANINGS = {
    "--out": "where the command writes: a run, a folder or a file",
    "--format": "export asks which, import finds it by itself",
    "--target": "a command of bisect's; elsewhere the run is positional",
    "--reference": "as --target",
    "--dtype": "of what --to-cpu reroutes, and of what --confirm does",
    "--map": "of a comparison's calls and slots, or of the tensors of two sets of weights",
    "--top": "how many are shown without it differs",
}


def actions() -> list[tuple[str, argparse.Action]]:
    found = []
    for name in available():
        parser = grammar.parser_of(name, importlib.import_module(module_of(name)))
        found += [(name, action) for action in parser._actions if action.help != argparse.SUPPRESS]
    return found


def test_every_command_of_the_table_is_there_and_no_other() -> None:
    assert set(COMMANDS) == set(available()), "commands/__init__.py lists a command whose file is missing"
    files = {path.stem.rstrip("_") for path in Path(grammar.__file__).parent.glob("[!_]*.py")} - {"grammar"}
    assert files == set(COMMANDS), "add the new command's line to COMMANDS in commands/__init__.py"


def test_every_command_with_an_answer_writes_it_as_json() -> None:
    having = {name for name, action in actions() if "--json" in action.option_strings}
    lacking = set(COMMANDS) - having - WITHOUT_JSON
    assert not lacking, f"{sorted(lacking)}: call grammar.add_json(parser), and write_document() the answer"


def test_an_option_means_the_same_in_every_command() -> None:
    by_name: dict[str, dict[tuple[object, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, action in actions():
        for flag in action.option_strings:
            said = (
                action.metavar,
                action.nargs,
                action.type,
                type(action).__name__,
                repr(action.default or None),
                action.help,
            )
            by_name[flag][said].append(name)
    for flag, meanings in by_name.items():
        if flag not in TWO_MEANINGS:
            assert len(meanings) == 1, f"{flag} differs between {list(meanings.values())}: declare it in grammar.py"


def test_options_and_their_values_are_spelled_alike() -> None:
    for name, action in actions():
        for flag in action.option_strings:
            assert flag in ("-h", "-c") or flag.startswith("--"), f"{name} {flag}: options have long names"
            assert "_" not in flag, f"{name} {flag}: words are joined by -"
        if action.option_strings and action.nargs != 0 and action.choices is None:
            metavar = str(action.metavar)
            assert metavar == metavar.upper() != "NONE", f"{name} {action.option_strings}: metavar={metavar}"
        assert action.help, f"{name} {action.option_strings or action.dest} has no help"


def test_one_run_and_two_runs_have_one_name() -> None:
    for name, action in actions():
        if not action.option_strings and action.dest in ("run_path", "run", "target", "reference"):
            assert action.metavar in ("RUN", "TARGET", "REFERENCE"), f"{name}: {action.metavar}"


@pytest.mark.parametrize("arguments", [["--json", "."], ["--json", "s3://bucket/run"], ["--json", "-", "."]])
def test_a_run_after_json_is_no_file(arguments: list[str]) -> None:
    assert grammar.with_bare_json(arguments)[:2] == ["--json", "-"]


def test_a_file_after_json_stays_one_and_a_script_is_left_alone() -> None:
    assert grammar.with_bare_json(["--json", "answer.json", "."]) == ["--json", "answer.json", "."]
    assert grammar.with_bare_json(["--", "a.py", "--json", "."]) == ["--", "a.py", "--json", "."]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["numscope", "comp"], ["compare", "completion"]),
        (["numscope", "compare", "--sor"], ["--sort"]),
        (["numscope", "compare", "--sort", "e"], ["error"]),
    ],
)
def test_bash_completes(line: list[str], expected: list[str], tmp_path: Path) -> None:
    from numscope.commands.completion import bash, options_of

    script = tmp_path / "completion"
    script.write_text(bash(available(), {name: options_of(name) for name in available()}))
    words = " ".join(line)
    code = f'source {script}; COMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; _numscope; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_of_every_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    from numscope.__main__ import main

    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    flags = {flag for _, action in actions() for flag in action.option_strings if flag.startswith("--")}
    assert not {flag for flag in flags if flag not in out and f"-l {flag[2:]}" not in out}
