"""Headroom against the truth: what a conversion to the format really does to each element, and counts by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

import numscope as ns
from numscope.check.headroom import FORMATS, _shares, headroom, near_misses, operators
from numscope.core.dtypes import FloatFormat
from numscope.core.errors import SettingsError

TYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}


def truth(values: NDArray[Any], name: str) -> tuple[float, float, float, float]:
    """Count the finite elements of float32 after a conversion."""
    form = FORMATS[name]
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        there = values.astype(TYPES[name]).astype(np.float64)
    size = np.abs(there)
    total = max(values.size, 1)
    over = ~np.isfinite(there)
    near = (np.abs(values.astype(np.float64)) >= form.largest / 4) & ~over
    subnormal = (size > 0) & (size < form.normal)
    flushed = (there == 0) & (values != 0)
    return tuple(float(np.count_nonzero(item) / total) for item in (over, near, subnormal, flushed))  # type: ignore[return-value]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200), st.sampled_from(sorted(TYPES)))
def test_any_bits_are_counted_as_a_conversion_treats_them(bits: list[int], name: str) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    assert _shares(values, FORMATS[name]) == pytest.approx(truth(values, name), abs=0)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_the_edges_are_exact_to_the_last_bit(name: str) -> None:
    form = FORMATS[name]
    marks = [
        form.largest,
        form.overflow_edge,
        form.normal,
        form.normal - form.smallest / 2,
        form.smallest,
        form.smallest / 2,
    ]
    near = [np.float32(mark) for mark in marks]
    values = [
        step
        for mark in near
        for step in (mark, np.nextafter(mark, np.float32(0)), np.nextafter(mark, np.float32(np.inf)))
    ]
    array = np.array(values + [-value for value in values], np.float32)
    for value in array:
        assert _shares(value[None], form) == truth(value[None], name), value


def test_double_precision_against_single() -> None:
    form = FORMATS["fp32"]
    for value, overflows in (
        (form.overflow_edge, True),
        (np.nextafter(form.overflow_edge, 0), False),
        (form.largest, False),
    ):
        with np.errstate(over="ignore"):
            assert np.isinf(np.float64(value).astype(np.float32)) == overflows
        assert form.overflows(np.float64(value)) == overflows
        assert _shares(np.array([value]), form)[0] == float(overflows)


class Chain(nn.Module):
    """Its intermediate results cover the range of fp16, and a mask of the smallest number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1e5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        big = x * self.weight
        small = x / 1e9
        mask = torch.full((3,), torch.finfo(torch.float32).min)
        return big + small + torch.softmax(x + mask, -1)


@pytest.fixture(params=["stats", "tensors"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    model = Chain()
    with ns.capture(tmp_path / "run", model, keep=request.param) as cap:
        model(torch.tensor([1.0, 0.5, 2.0])).sum().backward()
        cap.step()
    return ns.open_run(tmp_path / "run")


def check_against_data(run: Any, form: FloatFormat) -> None:
    for margin in headroom(run, form):
        array = run.tensor(f"{margin.call}.{margin.slot}").astype(np.float64)
        array = array[array != np.finfo(np.float32).min]
        assert margin.largest == np.abs(array).max()
        assert margin.overflowing == np.mean(form.overflows(np.abs(array)))


def test_calls_and_parameters_that_do_not_fit_are_named_and_masks_are_not(run: Any) -> None:
    found = {(margin.call, margin.slot): margin for margin in headroom(run, FORMATS["fp16"])}
    over = {place for place, margin in found.items() if margin.overflows}
    assert ("Tensor.mul.0.forward", "output.0") in over
    assert ("Module.Chain.forward.0", "parameters.weight") in over
    assert not any(call.startswith("Torch.full") for call, _ in found)
    assert near_misses(run) == []
    if run.manifest["settings"]["keep"] == "tensors":
        assert found["Tensor.div.0.forward", "output.0"].flushed == 1.0
        check_against_data(run, FORMATS["fp16"])


def test_operators_are_counted_by_dtype(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    for level, expected in (
        ("mix", {"bfloat16": {"Functional.linear": 2, "Functional.relu": 1}, "float32": {"Torch.ones": 1}}),
        ("module", {"bfloat16": {"Module.Linear": 2}}),
    ):
        with ns.capture(tmp_path / level, model, level=level) as cap, torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.ones(2, 4))
            cap.step()
        counts = operators(ns.open_run(tmp_path / level))
        for dtype, calls in expected.items():
            for name, number in calls.items():
                assert counts[dtype][name] == number, (level, counts)


def test_an_unknown_format_is_an_error_that_lists_the_known_ones() -> None:
    from numscope.check.headroom import format_of

    assert format_of("float16") is format_of("fp16")
    with pytest.raises(SettingsError, match="fp8_e5m2"):
        format_of("int8")
