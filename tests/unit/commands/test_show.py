from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from numscope.__main__ import main
from numscope.store.writer import Batch, RunWriter
from tests.unit.store.batches import arrays_of, batch_of, write_run


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_run(tmp_path / "run", steps=2, calls=12)
    return str(tmp_path / "run")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out


def test_the_overview_tells_what_a_run_holds(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, path)
    for text in ("torch", "level='mix'", "0-1", "24   24 api", "24 distinct in 48 slots, 24 kept", "in 9 files"):
        assert text in out
    assert "skipped" in out
    assert "2   a reason" in out
    assert "Functional.linear ×24" in out
    assert "NaN, inf      none" in out


def test_the_overview_names_what_was_cut_off_and_the_first_non_finite_slot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunWriter(tmp_path / "run", rank=0, manifest={}) as writer:
        writer.write(batch_of(0, [np.ones(2), np.array([1, np.inf]), np.array([np.nan])]))
        writer.end_step(0, {})
        writer.write(batch_of(1, arrays_of(1)))
    out = shown(capsys, str(tmp_path / "run"))
    assert "step 1 of rank 0: what was written of it is shown" in out
    assert "first in Functional.linear.0.forward.input.0 (step 0, rank 0)" in out


def test_a_pattern_shows_calls_with_slots_and_statistics(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, path, "linear.3.", "--step", "1")
    array = arrays_of(1, 12)[3]
    title, row = out.splitlines()[2], out.splitlines()[4]
    assert title.startswith(
        "Functional.linear.3.forward   blocks.0.mlp   model.py:41  return F.linear(x, w)   eps=1e-05"
    )
    assert row.split()[:4] == ["output.0", "float32", "[2,", "3]"]
    assert f"{float(array.min()):.5g}" in row
    assert row.rstrip().endswith("kept")
    assert len(out.splitlines()) == 5


def test_columns_are_aligned_and_nothing_is_wrapped(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, path, "*").splitlines()
    at = lines[0].index("hash")
    rows = [line for line in lines[1:] if line.startswith("  ")]
    assert len(rows) == 48
    assert all(line[at - 1] == " " and line[at] != " " for line in rows)


def test_a_glob_must_match_the_whole_name_and_case_does_not_matter(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(capsys, path, "functional.LINEAR.1?.forward", "--step", "0")
    titles = [line.split()[0] for line in out.splitlines() if line.startswith("Functional")]
    assert titles == ["Functional.linear.10.forward", "Functional.linear.11.forward"]


def test_the_name_of_a_tensor_shows_its_slot_alone(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, path, "linear.3.forward.output.0", "--step", "0")
    assert [line.split()[0] for line in out.splitlines()[3:]] == ["output.0"]


def test_stacks_look_as_python_prints_them(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, path, "linear.3.", "--step", "0", "--stack")
    assert (
        '    File "train.py", line 7, in main\n'
        "      loss = model(x)\n"
        '    File "model.py", line 41, in forward\n'
        "      return F.linear(x, w)\n"
        '    File "torch/nn/functional.py", line 9, in linear\n'
    ) in out


def test_limit_says_how_many_more_there_are(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, path, "linear", "--limit", "5")
    assert out.count("Functional.linear") == 5
    assert out.endswith("19 more calls: --top 0 shows all\n")
    assert shown(capsys, path, "linear", "--limit", "0").count("Functional.linear") == 24


def test_steps_and_ranks_are_named_where_there_are_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        write_run(tmp_path / "run", rank=rank, steps=1, calls=1)
    out = shown(capsys, str(tmp_path / "run"), "linear")
    assert "step 0 rank 0  Functional.linear.0.forward" in out
    assert "step 0 rank 1  Functional.linear.0.forward" in out
    assert shown(capsys, str(tmp_path / "run"), "linear", "--rank", "1").count("Functional") == 1


def test_json_is_strict_and_has_the_same_facts(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    overview = json.loads(shown(capsys, path, "--json"))
    assert (overview["format"], overview["calls"], overview["slots"]) == ("numscope.show/1", 24, 48)
    calls = json.loads(shown(capsys, path, "linear.3.", "--json", "--stack"))
    assert calls["total"] == 2
    assert calls["calls"][0]["slots"][1]["slot"] == "output.0"
    assert calls["calls"][0]["frames"][1]["file"] == "model.py"


def test_a_slot_that_was_not_measured_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunWriter(tmp_path / "run", rank=0, manifest={}) as writer:
        calls = {"step": [0], "order": [0], "name": ["Torch.exp.0.forward"], "error": ["ValueError: no"]}
        slots = {"step": [0], "call": [0], "slot": ["input.0"], "note": ["sparse layout"]}
        writer.write(Batch(calls=calls, slots=slots))
        writer.end_step(0, {})
    out = shown(capsys, str(tmp_path / "run"), "exp")
    assert "sparse layout" in out
    assert "raised ValueError: no" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lineer"], "matches 'lineer' (nearest: linear)"),
        (["zzz"], "'*' lists all)"),
        (["linear", "--step", "7"], "has no step 7: it has steps [0, 1], ranks [0]"),
    ],
)
def test_what_is_not_there_is_one_line(
    path: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", path, *arguments]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_loop_of_three_steps_is_shown_as_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    import numscope as ns

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ns.capture(tmp_path / "run", model) as capture:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            capture.step()
        model(torch.ones(2, 4)).sum()  # an evaluation after it
    assert main(["show", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "0-2, " in out
    assert "; 3 is what followed them" in out
