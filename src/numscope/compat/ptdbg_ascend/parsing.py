"""`parse`: the stack and the statistics of one call, for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numscope.core.errors import SettingsError
from numscope.store.formats.ptdbg import Line, lines_of


def parse(pkl_file: str, module_name_prefix: str) -> None:
    """Print the stack, as a Python traceback has it, and the statistics of the calls whose names begin so."""
    path = Path(pkl_file)
    if not path.is_file():
        raise SettingsError(f"parse: {pkl_file} does not exist: give the .pkl file that the dump wrote")
    found = False
    for line in lines_of(path):
        name = str(line.fields[0])
        if name.startswith(module_name_prefix) and not name[len(module_name_prefix) :][:1].isdigit():
            found = True
            _print(line, name)
    if not found:
        raise SettingsError(
            f"parse: {pkl_file} has no call {module_name_prefix!r}: give a prefix such as 21_Torch_norm"
        )


def _print(line: Line, name: str) -> None:
    if line.role == "stack_info":
        print(f"\nTrace back({name.removesuffix('_stack_info')}):")
        for file, number, function, code in (_frame(frame) for frame in reversed(line.fields[1])):
            print(f'  File "{file}", line {number}, in {function}')
            print(f"    {code}")
        return
    stats: list[Any] = [*(line.fields[5] if len(line.fields) > 5 else []), None, None, None]
    print(f"\nStatistic Info:\n  [{name}][dtype: {line.fields[3]}]")
    print(f"  [shape: {line.fields[4]}]")
    if stats[0] is not None:
        print(f"  [max: {stats[0]}]\n  [min: {stats[1]}]\n  [mean: {stats[2]}]")


def _frame(frame: Any) -> tuple[Any, Any, Any, str]:
    file, number, function, code = [*frame, "", 0, "", ""][:4]
    return file, number, function, str(code[0] if isinstance(code, list) and code else code).strip()
