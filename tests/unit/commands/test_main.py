from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from numscope import __version__, commands
from numscope.__main__ import main
from numscope.commands import COMMANDS, available, module_of
from numscope.core.errors import RunError


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command of our own in the place of `show`, whose `run` a test may set."""
    module = ModuleType("numscope.commands.show", "A command.")
    module.HELP = "a command"  # type: ignore[attr-defined]
    module.add_arguments = lambda parser: parser.add_argument("rest", nargs="*")  # type: ignore[attr-defined]
    module.run = lambda args: 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numscope.commands.show", module)
    return module


def raising(error: BaseException) -> Any:
    def run(_: argparse.Namespace) -> int:
        raise error

    return run


def test_help_lists_the_commands_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, line in COMMANDS.items():
        assert (f"  {name:<10} {line}" in out) == (name in available())
    assert "show" in available()


def test_every_command_has_help_and_the_three_parts(capsys: pytest.CaptureFixture[str]) -> None:
    for name in available():
        assert main([name, "-h"]) == 0, name
        out = capsys.readouterr().out
        assert out.startswith(f"usage: numscope {name}")
        assert "--debug" in out
        assert isinstance(sys.modules[module_of(name)].HELP, str)  # type: ignore[attr-defined]


def test_the_contracts_commands_are_in_the_table() -> None:
    contract = "run compare diagnose bisect check doctor show view import export demo"
    assert not set(contract.split()) - set(COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"numscope {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["shwo"], "there is no command 'shwo': did you mean show?"),
        (["--nonsense"], "unrecognized arguments: --nonsense (numscope -h lists the arguments)"),
        (["show", "--nonsense", "x"], "unrecognized arguments: --nonsense (numscope show -h lists the arguments)"),
        (["show", "nothing/here"], "nothing/here does not exist: give the directory that capture wrote"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"numscope: {says}\n")


def test_no_command_shows_the_help_and_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--debug", "show"], ["show", "--debug"], ["show", "a", "--debug"]])
def test_debug_shows_the_traceback_before_or_after_the_command(
    command: ModuleType, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command.run = raising(RunError("broken\nin two lines"))  # type: ignore[attr-defined]
    assert main(arguments) == 2
    assert "Traceback" in capsys.readouterr().err


def test_debug_after_two_dashes_is_the_scripts_own(command: ModuleType) -> None:
    seen: list[argparse.Namespace] = []
    command.run = lambda args: seen.append(args) or 0  # type: ignore[attr-defined]
    assert main(["show", "--", "script.py", "--debug"]) == 0
    assert seen[0].debug is False
    assert seen[0].rest == ["script.py", "--debug"]


def test_faults_of_ours_are_one_line_too(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    command.run = raising(RunError("broken\nin two lines"))  # type: ignore[attr-defined]
    assert main(["show"]) == 2
    assert capsys.readouterr().err == "numscope: broken in two lines\n"
    command.run = raising(KeyError("x"))  # type: ignore[attr-defined]
    assert main(["show"]) == 2
    err = capsys.readouterr().err
    assert "a fault in numscope (KeyError: 'x')" in err
    assert err.count("\n") == 1
    command.run = raising(FileNotFoundError(2, "No such file or directory", "map.json"))  # type: ignore[attr-defined]
    assert main(["show"]) == 2
    assert capsys.readouterr().err == "numscope: map.json: No such file or directory: check the path\n"


def test_an_interrupt_is_130(command: ModuleType) -> None:
    command.run = raising(KeyboardInterrupt())  # type: ignore[attr-defined]
    assert main(["show"]) == 130


def test_the_commands_status_is_passed_on(command: ModuleType) -> None:
    command.run = lambda args: 1  # type: ignore[attr-defined]
    assert main(["show"]) == 1


def test_a_command_that_cannot_be_loaded_hinders_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "view.py").write_text("import a_package_that_is_not_there")
    monkeypatch.setattr(commands, "__path__", [str(tmp_path), *commands.__path__])
    monkeypatch.delitem(sys.modules, "numscope.commands.view", raising=False)
    monkeypatch.setattr("numscope.__main__.available", lambda: {"show": "", "view": ""})
    assert main(["view"]) == 2
    assert (
        "the command view cannot be loaded (No module named 'a_package_that_is_not_there')" in capsys.readouterr().err
    )
    assert main(["show", "-h"]) == 0


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    from tests.unit.store.batches import write_run

    write_run(tmp_path / "run", calls=2000, steps=1, keep=False)
    code = f"{sys.executable} -m numscope show {tmp_path / 'run'} linear --limit 0 | head -n 1"
    done = subprocess.run(["bash", "-c", code + "; echo ${PIPESTATUS[0]}"], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "141"


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = """
import sys
from numscope.__main__ import main
main(["--help"])
print(sorted({"pyarrow", "numpy", "torch", "rich"} & set(sys.modules)), file=sys.stderr)
"""
    times = []
    for _ in range(3):
        began = os.times()
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        used = os.times()
        times.append(used.children_user + used.children_system - began.children_user - began.children_system)
        assert done.stderr.strip() == "[]"
    assert min(times) < 0.5
