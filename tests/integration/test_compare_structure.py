"""Runs without fingerprints: nothing is called equivalent, and what is known of their structure is told."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc
import pytest
import torch
import torch.nn as nn

import numscope as ns
from numscope.__main__ import main


class Net(nn.Module):
    def __init__(self, eps: float = 1e-5, width: int = 8, extra: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm = nn.Linear(8, width), nn.LayerNorm(width, eps=eps)
        self.down = nn.Linear(width, 8)
        self.extra = extra

    def forward(self, x):
        h = self.norm(self.up(x))
        if self.extra:
            h = torch.tanh(h)
        return self.down(h)


def captured(path: Path, model: nn.Module, keep: str, x: torch.Tensor | None = None) -> Path:
    x = torch.ones(4, 8) if x is None else x
    with ns.capture(path, model, keep=keep):
        model(x).sum().backward()
    return path


@pytest.mark.parametrize("keep", [("structure", "structure"), ("structure", "stats"), ("stats", "structure")])
def test_an_argument_that_differs_is_told_though_nothing_was_measured(tmp_path, keep):
    a = captured(tmp_path / "a", Net(eps=1e-3), keep[0])
    b = captured(tmp_path / "b", Net(), keep[1])
    comparison = ns.compare(a, b)
    report = comparison.report
    assert report.verdict == "incomparable"
    assert report.origin is None
    assert set(report.counts.values()) == {0}
    assert report.coverage["skipped"]["calls of which nothing was measured"] == report.coverage["matched"]
    assert "1 call differs in its arguments" in report.reason
    assert "layer_norm in norm: argument eps 0.001 against 1e-05" in report.reason
    first = report.details["structure"]["first"][0]
    assert first["call"] == "Functional.layer_norm.0.forward"
    assert Path(first["source"]["file"]).name == Path(__file__).name
    assert pc.all(pc.is_null(comparison.calls["verdict"])).as_py()
    assert pc.all(pc.is_null(comparison.pairs["verdict"])).as_py()


def test_the_same_structure_is_said_to_be_the_same(tmp_path):
    report = ns.compare(
        captured(tmp_path / "a", Net(), "structure"), captured(tmp_path / "b", Net(), "structure")
    ).report
    assert report.verdict == "incomparable"
    assert "the calls, their arguments, shapes and dtypes are the same" in report.reason
    assert report.details["structure"]["first"] == []


def test_calls_that_one_side_alone_has_are_told(tmp_path):
    a, b = captured(tmp_path / "a", Net(extra=True), "structure"), captured(tmp_path / "b", Net(), "structure")
    assert "tanh: only the target has this call" in ns.compare(a, b).report.reason
    other = ns.compare(b, a).report
    assert "tanh: only the reference has this call" in other.reason
    assert other.counts["unmatched"] == other.details["structure"]["unmatched"] > 0


def test_shapes_and_dtypes_that_differ_are_told_at_the_call_that_makes_them(tmp_path):
    b = captured(tmp_path / "b", Net(), "structure")
    wide = ns.compare(captured(tmp_path / "a", Net(width=16), "structure"), b).report
    assert wide.details["structure"]["shapes"] > 1
    assert "linear in up" in wide.reason
    assert "is [16, 8], the reference's [8, 8]" in wide.reason
    double = captured(tmp_path / "c", Net().double(), "structure", torch.ones(4, 8, dtype=torch.float64))
    report = ns.compare(double, b).report
    assert report.details["structure"]["dtypes"] > 1
    assert "is float64, the reference's float32" in report.reason


def test_every_output_takes_a_comparison_without_verdicts(tmp_path, capsys):
    a, b = captured(tmp_path / "a", Net(eps=1e-3), "structure"), captured(tmp_path / "b", Net(), "structure")
    files = [f"--{form}={tmp_path}/report.{form}" for form in ("json", "csv", "parquet", "xlsx", "html")]
    assert main(["compare", str(a), str(b), "--explain-alignment", *files]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "look first at layer_norm" in shown
    assert "equivalent" not in shown
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["details"]["structure"]["arguments"] == 1
    assert all((tmp_path / f"report.{form}").stat().st_size for form in ("csv", "parquet", "xlsx", "html"))
