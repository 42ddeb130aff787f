"""The plumbing of `bench.real`: two releases side by side, one script, and an answer held against the fix."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("torch")
from bench.real import judge, releases, table
from bench.real.pair import Bug, Pair, Releases, load

_LIBRARY = """
import torch
from torch import nn

__version__ = "{version}"


class Norm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm({eps})

    def forward(self, x):
        return self.norm(x).sum()
"""
_SCRIPT = """
import tinylib
import torch

torch.manual_seed(0)
tinylib.Model()(torch.randn(4, 8, requires_grad=True) * 1e-2).backward()
"""
_BUG = Bug("https://example.org/1", (r"__init__\.py:forward",), (r"self\.norm = Norm\(", r"Norm\(1e-3?\)"))


def released(folder: Path, version: str, eps: str) -> None:
    """Lay a release down as if it were installed."""
    package = folder / f"tinylib-{version}" / "tinylib" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text(_LIBRARY.format(version=version, eps=eps))
    (folder / f"tinylib-{version}" / ".installed").touch()


def test_a_pair_is_captured_compared_and_held_against_its_fix(tmp_path: Path) -> None:
    released(tmp_path, "1.0", "")
    released(tmp_path, "1.1", "1e-3")
    script = tmp_path / "job.py"
    script.write_text(_SCRIPT)
    pair = Pair("norm", script, "", Releases("tinylib==1.0", "tinylib==1.1"), _BUG)
    one = judge.outcome(pair, tmp_path, tmp_path / "work")
    assert (one.verdict, one.origin_right, one.origin_false, one.statement, one.fault) == (
        "diverged",
        True,
        False,
        True,
        "",
    )
    assert any("tinylib 1.0 (1.1 in the reference)" in link for link in one.chain)
    assert table.summary([one])["passed"]


def test_a_job_that_fails_is_a_fault_and_no_answer(tmp_path: Path) -> None:
    released(tmp_path, "1.0", "")
    script = tmp_path / "job.py"
    script.write_text("import tinylib\nraise ValueError('lost')\n")
    pair = Pair("lost", script, "", Releases("tinylib==1.0", "tinylib==1.0"), _BUG)
    one = judge.outcome(pair, tmp_path, tmp_path / "work")
    assert "lost" in one.fault
    assert not table.summary([one])["passed"]


def test_a_version_that_is_only_said_to_be_there_is_found_by_those_who_ask(tmp_path: Path) -> None:
    place = releases.say(("some-thing==1.2",), tmp_path)
    assert place is not None
    assert [one.version for one in metadata.distributions(name="some-thing", path=[str(place)])] == ["1.2"]
    assert releases.say((), tmp_path) is None


def test_each_pair_has_a_public_report_or_is_a_control() -> None:
    pairs = load()
    assert sum(pair.bug is not None for pair in pairs) >= 20
    assert sum(pair.bug is None for pair in pairs) >= 5
    for pair in pairs:
        assert "numscope" not in pair.script.read_text(encoding="utf-8"), pair.name
        assert pair.bug is None or pair.bug.report.startswith("https://"), pair.name
