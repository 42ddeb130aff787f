"""The zoo: its cases say what is true of them, and a fast subset is found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from bench.zoo import catalogue, execute
from bench.zoo.truth import Truth, accepts, call, lines, missing

# One of each: an argument, a parameter, a missing call, an optimizer, data, a gradient; and controls.
SUBSET = (
    "gelu_tanh,parameter_init,softcap_dropped,adamw_eps,data_not_normalised,untied_weights,"
    "control_addmm,control_in_place,control_wrapped"
)


def test_the_zoo_is_as_large_as_promised():
    cases = catalogue.load()
    assert sum(not case.control for case in cases) >= 28
    assert sum(case.control for case in cases) >= 14


def test_every_marker_of_a_truth_is_in_its_script():
    for case in catalogue.load():
        if case.truth:
            for answer in case.truth.answers:
                assert answer.marker is None or lines(case.script, answer.marker), (case.name, answer)


def test_the_scripts_know_nothing_of_numscope():
    for case in catalogue.load():
        assert "numscope" not in case.script.read_text(encoding="utf-8"), case.name


def test_an_answer_must_fit_in_name_module_kind_and_line(tmp_path: Path):
    script = tmp_path / "model.py"
    script.write_text("a\nb  # origin\nc  # missing\n")
    truth = Truth((call("Tensor.lt", "blocks.1"), missing("Torch.tanh")), ("semantic",), step=0)
    origin = {"call": "Tensor.__lt__.4.forward", "kind": "api", "module": "blocks.1", "phase": "forward", "step": 0}
    origin |= {"rank": 0, "source": {"file": "/elsewhere/model.py", "line": 2}}
    assert accepts(truth, origin, script)
    for change in (
        {"call": "Tensor.le.4.forward"},
        {"module": "blocks.0"},
        {"kind": "missing"},
        {"step": 1},
        {"source": None},
        {"source": {"file": "model.py", "line": 3}},
    ):
        assert not accepts(truth, origin | change, script), change
    absent = {"call": "Torch.tanh.0.forward", "kind": "missing", "source": {"file": "model.py", "line": 3}}
    assert accepts(truth, origin | absent, script)


def test_the_plain_mode_sees_a_bug_and_a_control_differ_as_they_should(tmp_path: Path):
    command = [sys.executable, "-m", "bench.zoo", "--plain", "--jobs", "1", "--out", str(tmp_path)]
    for pattern in ("causal_with_cache", "control_split_k"):
        done = run_zoo([*command, "--only", pattern])
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("ok"), done.stdout


@pytest.mark.parametrize("keep", ["tensors", "stats"])
def test_a_fast_subset_is_captured_and_its_origins_are_found(tmp_path: Path, keep: str):
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench.zoo", "--keep", keep, "--only", SUBSET, "--json", str(results)]
    done = run_zoo(command)
    assert results.exists(), done.stdout + done.stderr
    summary = json.loads(results.read_text())["summary"]
    assert summary["errors"] == [], done.stdout
    assert summary["missed"] == [], done.stdout
    assert summary["false_alarms"] == [], done.stdout
    assert summary["rank1"] == summary["bugs"] >= 6, done.stdout


def run_zoo(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=execute.ROOT, env=execute.environment(), capture_output=True, text=True, check=False
    )
