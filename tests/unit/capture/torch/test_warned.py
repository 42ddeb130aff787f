"""Torch's own warnings name the user's line while a job is watched."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import numscope as ns


@pytest.mark.parametrize("level", ["module", "mix", "aten"])
def test_a_warning_of_torch_names_the_users_line(tmp_path: Path, level: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with ns.capture(tmp_path / "run", None, level=level):
            F.mse_loss(torch.ones(3, 1), torch.ones(3))
            F.softmax(torch.ones(3))
    assert [(Path(one.filename).name, "size" in str(one.message)) for one in told] == [
        (Path(__file__).name, True),
        (Path(__file__).name, False),
    ]


def test_how_warnings_are_shown_is_as_before_after_capture_and_guard(tmp_path: Path) -> None:
    before = warnings.showwarning
    with ns.capture(tmp_path / "run", None):
        assert warnings.showwarning is not before
    assert warnings.showwarning is before
    with ns.guard():
        pass
    assert warnings.showwarning is before


def test_a_job_that_shows_warnings_its_own_way_goes_on_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    shown: list[str] = []

    def own(message: object, category: object, filename: str, *rest: object) -> None:
        shown.append(filename)

    with ns.capture(tmp_path / "run", None):
        warnings.showwarning = own
    assert warnings.showwarning is own
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = own
        with ns.capture(tmp_path / "other", None):
            F.softmax(torch.ones(3))
    assert shown == [__file__]
