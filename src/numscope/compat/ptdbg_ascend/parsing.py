"""`parse`: prints the stack and the statistics of one call."""

from __future__ import annotations

from pathlib import Path

from numscope.compat.ptdbg_ascend.comparing import three_statistics
from numscope.core.errors import SettingsError
from numscope.core.json_value import items
from numscope.store.formats.ptdbg import Line, lines_of


def parse(pkl_file: str, module_name_prefix: str) -> None:
    """Print the stack, like a Python traceback, and the statistics of the calls whose names begin with a prefix."""
    path = Path(pkl_file)
    if not path.is_file():
        raise SettingsError(f"parse: {pkl_file} does not exist: give the .pkl file that the dump wrote")
    found = False
    for line in lines_of(path):
        if line.name.startswith(module_name_prefix) and not line.name[len(module_name_prefix) :][:1].isdecimal():
            found = True
            _print(line)
    if not found:
        raise SettingsError(
            f"parse: {pkl_file} has no call {module_name_prefix!r}: give a prefix such as 21_Torch_norm"
        )


def _print(line: Line) -> None:
    if line.role == "stack_info":
        print(f"\nTrace back({line.name.removesuffix('_stack_info')}):")
        for frame in reversed(line.frames):
            file, number, function, code = [*items(frame), "", 0, "", ""][:4]
            print(f'  File "{file}", line {number}, in {function}')
            print(f"    {str(code[0] if isinstance(code, list) and code else code).strip()}")
        return
    high, low, mean = three_statistics(line)
    print(f"\nStatistic Info:\n  [{line.name}][dtype: {line.dtype}]")
    print(f"  [shape: {list(line.shape)}]")
    if high is not None:
        print(f"  [max: {high}]\n  [min: {low}]\n  [mean: {mean}]")
