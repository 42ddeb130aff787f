"""A step that is handed over in many parts gives the same run, and needs no more memory than what lives in it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

import numscope as ns
from numscope.capture.recording import recorder

torch = pytest.importorskip("torch")


def run_of(path: Path, parts: bool, monkeypatch: pytest.MonkeyPatch, keep: str) -> list[tuple[Any, ...]]:
    monkeypatch.setattr(recorder, "FLUSH_SLOTS", 6 if parts else 10**6)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2), torch.nn.Softmax(-1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.randn(6, 4)
    with ns.capture(path, model, keep=keep, on_error="raise") as cap:
        for _ in range(2):
            x = data
            for _ in range(20):  # each is gone when the next is there: addresses are given to others
                x = x * 1.01 + 0.5
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            cap.step()
    tensors = ns.open_run(path).tensors.to_pylist()
    return sorted((row["step"], row["name"], row["dtype"], tuple(row["shape"]), row["hash"]) for row in tensors)


@pytest.mark.parametrize("keep", ["stats", "tensors"])
def test_a_step_in_many_parts_is_the_step_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str) -> None:
    whole = run_of(tmp_path / "whole", False, monkeypatch, keep)
    assert len(whole) > 200
    assert run_of(tmp_path / "parts", True, monkeypatch, keep) == whole


def test_what_is_gone_is_forgotten_within_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FLUSH_SLOTS", 50)
    cap = ns.capture(tmp_path / "run", None, level="api", keep="stats", on_error="raise")
    with cap:
        x = torch.zeros(8)
        for _ in range(500):
            x = torch.add(x, 1.0)
        known = cap._frontend.watch.tensors
        assert len(known.cached) < 100
        assert len(known._weak_refs) < 100
        assert sum(len(layout.numbers) for layout in known._layouts.values()) < 100
        cap.step()
    rows = ns.open_run(tmp_path / "run").tensors.to_pylist()
    assert [row["mean"] for row in rows if row["slot"] == "output.0" and "add" in row["name"]] == list(range(1, 501))


@pytest.mark.parametrize("level", ["module", "api", "mix", "aten"])
def test_a_closed_capture_is_let_go(tmp_path: Path, level: str) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> list[weakref.ref[Any]]:
        cap = ns.capture(tmp_path / "run", model, level=level, on_error="raise")
        with cap:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            cap.step()
        return [weakref.ref(part) for part in (cap, cap._recorder, cap._frontend.watch, cap._recorder.writer)]

    parts = run()
    gc.collect()
    assert [part() for part in parts] == [None] * 4
