"""The columns of a call that say under which settings it ran."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import numscope as ns
from numscope.capture.torch import native


def autocasts(path: Path, level: str) -> dict[str, str | None]:
    """Return the autocast column of a small job, by the names of its calls."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    x = torch.ones(2, 4)
    with ns.capture(path, model, level=level, on_error="raise"):
        F.gelu(x)
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
            with torch.autocast("cpu", enabled=False):
                F.relu(y)
        y.sum().backward()
    calls = ns.open_run(path).calls
    return dict(zip(calls["name"].to_pylist(), calls["autocast"].to_pylist()))


@pytest.mark.parametrize("around", [nullcontext, native.without], ids=["compiled", "python"])
def test_a_call_says_which_autocast_it_ran_under(
    tmp_path: Path, around: Callable[[], AbstractContextManager[None]]
) -> None:
    with around():
        seen = autocasts(tmp_path / "run", "mix")
    assert {name for name, dtype in seen.items() if dtype == "bfloat16"} == {
        "Data.Sequential.0.input",
        "Module.Sequential.forward.0",
        "Module.0.Linear.forward.0",
        "Module.1.Dropout.forward.0",
        "Functional.linear.0.forward",
        "Functional.dropout.0.forward",
    }
    assert {dtype for dtype in seen.values() if dtype != "bfloat16"} == {None}


@pytest.mark.parametrize("around", [nullcontext, native.without], ids=["compiled", "python"])
def test_operators_get_what_autocast_has_cast(
    tmp_path: Path, around: Callable[[], AbstractContextManager[None]]
) -> None:
    with around():
        seen = autocasts(tmp_path / "run", "aten")
    assert {name for name, dtype in seen.items() if dtype} == {
        "Data.Sequential.0.input",
        "Module.Sequential.forward.0",
        "Module.0.Linear.forward.0",
        "Module.1.Dropout.forward.0",
    }
