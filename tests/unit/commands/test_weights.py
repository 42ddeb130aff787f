"""`numscope weights`: exit status, one screen, JSON on standard output, map files, fingerprints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from numscope.__main__ import main
from numscope.testing import assert_same_weights


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    draw = np.random.default_rng(0)
    state = {f"layers.{n}.mlp.up_proj.weight": draw.normal(size=(8, 6)).astype(np.float32) for n in range(3)}
    save_file(state, tmp_path / "b.safetensors")
    state["layers.1.mlp.up_proj.weight"] = state["layers.1.mlp.up_proj.weight"] * 2
    save_file(state, tmp_path / "a.safetensors")
    return str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")


def test_the_status_and_the_screen(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", *pair]) == 1
    told = capsys.readouterr().out
    assert told.startswith("DIVERGED  2 of 3 tensors of B are in A; 1 is wrong")
    assert "scale           layers.1.mlp.up_proj.weight" in told
    assert len(told.splitlines()) < 25
    assert main(["weights", pair[1], pair[1]]) == 0
    assert main(["weights", pair[1], "nowhere"]) == 2


def test_json_and_csv(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", *pair, "--json", "-", "--csv", str(tmp_path / "p.csv")]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["format"] == "numscope.weights/1"
    assert answer["verdict"] == "diverged"
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert len(lines) == 4
    assert lines[0].replace('"', "").startswith("a,b,relation,relative,verdict")


def test_fingerprints(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "b.weights")
    assert main(["weights", pair[1], "--out", file]) == 0
    with safe_open(file, "numpy") as opened:  # as the format's own library reads it
        names = opened.keys()
        assert {opened.get_tensor(name).ndim for name in names} <= {1, 2}
    assert main(["weights", pair[1], file]) == 0
    assert main(["weights", pair[0], file]) == 1
    capsys.readouterr()
    assert main(["weights", *pair, "--out", file]) == 2
    assert main(["weights", pair[0]]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_map_overrules_names(tmp_path: Path) -> None:
    x, y = (np.random.default_rng(n).normal(size=(4, 3)).astype(np.float32) for n in range(2))
    rules = tmp_path / "map.toml"
    rules.write_text('[[pair]]\na = "*.both"\nb = ["*.second", "*.first"]\n')
    a, b = {"m.both": np.concatenate([y, x])}, {"m.first": x, "m.second": y}
    assert_same_weights(a, b, map=rules, identical=True)
    rules.write_text('[[pair]]\na = "m.both"\nb = "m.first"\n')
    with pytest.raises(AssertionError, match="not the same weights"):
        assert_same_weights(a, b, map=rules)
    rules.write_text("[[pairs]]\n")
    with pytest.raises(ValueError, match="there is no table"):
        assert_same_weights(a, b, map=rules)
