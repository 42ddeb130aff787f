"""The map file: names, patterns and layouts that overrule the alignment; mistakes in it are said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numscope.compare.align.map_file import load_map
from numscope.compare.comparison import compare
from numscope.compare.thresholds import load_thresholds
from numscope.core.errors import SettingsError
from tests.unit.compare.scripted import Script, numbers


def linear(transposed: bool, path: str = "up") -> Script:
    script = Script()
    x, weight = numbers((4, 16)), numbers((16, 8), seed=1)
    out = x @ weight
    held = np.ascontiguousarray(weight.T) if transposed else weight
    script.call("Data.Net.0.input", made={"output.0": x})
    given = {"input.0": x, "parameters.weight": held}
    name = f"Module.{path}.Linear.forward.0"
    script.call(name, given, {"output.0": out}, module=path, module_class="Linear")
    return script


def test_a_layout_brings_a_transposed_weight_into_place(tmp_path: Path) -> None:
    a, b = linear(True).write(tmp_path / "a", keep=True), linear(False).write(tmp_path / "b", keep=True)
    assert compare(a, b).verdict == "diverged"
    (tmp_path / "m.toml").write_text('[[layout]]\ntensor = "*.parameters.weight"\ntranspose = [1, 0]\n')
    comparison = compare(a, b, map=tmp_path / "m.toml")
    assert comparison.verdict == "identical"


WHOLE = numbers((8, 6), seed=3)
LAYOUTS = {
    "transpose": ("transpose = [1, 0]", {"parameters.weight": np.ascontiguousarray(WHOLE.T)}, WHOLE),
    "reshape": ("reshape = [8, 6]", {"parameters.weight": WHOLE.reshape(4, 12)}, WHOLE),
    "dtype": ('dtype = "float32"', {"parameters.weight": WHOLE.astype(np.float64)}, WHOLE),
    "concat": (
        'concat = [0, "Module.up.Linear.forward.0.parameters.more"]',
        {"parameters.weight": WHOLE[:3].copy(), "parameters.more": WHOLE[3:].copy()},
        WHOLE,
    ),
    "split": ("split = [0, 2, 1]", {"parameters.weight": WHOLE}, WHOLE[4:].copy()),
}


def held(weights: dict[str, Any]) -> Script:
    script = Script()
    x = numbers((4, 16))
    script.call("Data.Net.0.input", made={"output.0": x})
    given = {"input.0": x, **weights}
    script.call("Module.up.Linear.forward.0", given, {"output.0": x}, module="up", module_class="Linear")
    return script


@pytest.mark.parametrize("keep", [True, False], ids=["tensors", "stats"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_compared_by_data_or_by_what_it_cannot_change(tmp_path: Path, layout: str, keep: bool) -> None:
    rule, weights, whole = LAYOUTS[layout]
    (tmp_path / "m.toml").write_text(f'[[layout]]\ntensor = "*.parameters.weight"\n{rule}\n')
    a, b = (
        held(weights).write(tmp_path / "a", keep=keep),
        held({"parameters.weight": whole}).write(tmp_path / "b", keep=keep),
    )
    comparison = compare(a, b, map=tmp_path / "m.toml")
    assert comparison.verdict in ("identical", "equivalent"), comparison.origin
    row = next(row for row in comparison.pairs.to_pylist() if row["slot"] == "parameters.weight")
    assert (row["estimated"], row["relative_l2"]) == (not keep, 0.0)
    assert ("without data only counts" in row["reason"]) == (not keep)
    other = held({"parameters.weight": whole * np.float32(1.5)}).write(tmp_path / "c", keep=keep)
    wrong = compare(a, other, map=tmp_path / "m.toml")
    if layout == "split" and not keep:  # a part may have any norm up to the whole's
        other = held({"parameters.weight": whole * np.float32(9)}).write(tmp_path / "d", keep=keep)
        wrong = compare(a, other, map=tmp_path / "m.toml")
    assert wrong.origin is not None
    assert wrong.origin.kind == "parameter"


def test_a_nan_on_one_side_is_seen_through_a_layout(tmp_path: Path) -> None:
    rule, weights, whole = LAYOUTS["transpose"]
    (tmp_path / "m.toml").write_text(f'[[layout]]\ntensor = "*.parameters.weight"\n{rule}\n')
    spoiled = whole.copy()
    spoiled[1, 2] = np.nan
    a, b = held(weights).write(tmp_path / "a"), held({"parameters.weight": spoiled}).write(tmp_path / "b")
    comparison = compare(a, b, map=tmp_path / "m.toml")
    assert comparison.origin is not None
    assert comparison.origin.kind == "parameter"


def test_modules_of_other_names_are_paired(tmp_path: Path) -> None:
    a = linear(False, "encoder.layers.0").write(tmp_path / "a")
    b = linear(False, "blocks.0").write(tmp_path / "b")
    text = '[[module]]\ntarget = "encoder.layers.*"\nreference = "blocks.*"\n'
    (tmp_path / "m.toml").write_text(text)
    comparison = compare(a, b, map=tmp_path / "m.toml")
    rows = {row["target_name"]: row for row in comparison.calls.to_pylist()}
    found = rows["Module.encoder.layers.0.Linear.forward.0"]
    assert (found["reference_name"], found["alignment"]) == ("Module.blocks.0.Linear.forward.0", "map")


def test_calls_are_paired_by_pattern(tmp_path: Path) -> None:
    a, b = Script(), Script()
    for index in range(2):
        x = numbers(seed=index)
        a.call(f"Functional.mygelu.{index}.forward", {"input.0": x}, {"output.0": x * np.float32(2 + index)})
        b.call(f"Torch.erf.{index}.forward", {"input.0": x}, {"output.0": x * np.float32(2 + index)})
    text = '[[call]]\ntarget = "Functional.mygelu.*.forward"\nreference = "Torch.erf.*.forward"\n'
    (tmp_path / "m.toml").write_text(text)
    comparison = compare(a.write(tmp_path / "a"), b.write(tmp_path / "b"), map=tmp_path / "m.toml")
    assert comparison.calls["alignment"].to_pylist() == ["map", "map"]
    assert comparison.verdict == "identical"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[calls]]\ntarget = 'a'", "there is no table 'calls'"),
        ("[[call]]\ntarget = 'a.*'\nreference = 'b'", "different numbers of"),
        ("[[layout]]\nrotate = 1", "does not know 'rotate'"),
        ("[[layout]]\ntensor = '*'\nsplit = [0, 2, 2]", "axis, parts, which"),
        ("not toml", "not valid TOML"),
    ],
)
def test_a_mistake_in_a_map_file_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(SettingsError, match=said):
        load_map(tmp_path / "m.toml")


def test_thresholds_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[compare]\nscale = 2.0\nmax_unmatched = 0\n")
    assert load_thresholds(tmp_path / "t.toml").max_unmatched == 0
    (tmp_path / "t.toml").write_text("[compare]\nlimit = 2\n")
    with pytest.raises(SettingsError, match="there is no threshold 'limit'"):
        load_thresholds(tmp_path / "t.toml")
