"""Level aten: operators that are written down at once are recorded as all others are."""

from __future__ import annotations

import json
import random
from contextlib import suppress

import pytest
import torch
from torch import nn

import numscope as ns
from numscope.capture.torch import native


def recorded(path, work, steps=1, **settings):
    """Capture the work; return the tables of each step as plain lists."""
    with ns.capture(path, None, level="aten", on_error="raise", **settings) as capture:
        for _ in range(steps):
            work()
            capture.step()
    run = ns.open_run(path)
    tables = [run.step_tables(step, 0) for step in run.steps]
    return [{part: getattr(table, part).to_pydict() for part in ("calls", "slots", "tensors")} for table in tables]


def calls_of(tables, name):
    """Return the arguments of the calls whose names begin so, in their order."""
    calls = tables[0]["calls"]
    return [text for called, text in zip(calls["name"], calls["arguments"]) if called.startswith(name)]


def test_arguments_are_told_apart_by_their_type_and_sign(tmp_path):
    x = torch.ones(2)

    def work():
        for value in (2, 2.0, True, 0.0, -0.0, float("nan"), 0, 1.0):
            torch.full((2,), value)
        x.sum(0), x.sum([0]), x.view(2, 1), x.view(1, 2)

    found = [json.loads(text)["args"]["1"] for text in calls_of(recorded(tmp_path / "run", work), "Aten.full")]
    assert [repr(value) for value in found] == ["2", "2.0", "True", "0.0", "-0.0", repr(found[5]), "0", "1.0"]
    assert "nan" in str(found[5]).lower()


def test_operators_of_one_name_are_numbered_together(tmp_path):
    x = torch.ones(2)
    tables = recorded(tmp_path / "run", lambda: (x * x, torch.mul(x, 2), x * x), steps=2)
    for table in tables:
        names = [name for name in table["calls"]["name"] if name.startswith("Aten.mul")]
        assert names == ["Aten.mul.0.forward", "Aten.mul.1.forward", "Aten.mul.2.forward"]


def test_a_function_mode_of_the_users_changes_nothing(tmp_path):
    x = torch.randn(3, 4)

    def work():
        y = x.t() @ x
        torch.cat([y, y.view(16).view(4, 4)]).sum(0, keepdim=True)

    def inside():
        with torch.device("cpu"):
            work()

    plain, within = recorded(tmp_path / "plain", work, 2), recorded(tmp_path / "inside", inside, 2)
    for one, other in zip(plain, within):
        one["calls"].pop("stack"), other["calls"].pop("stack")
        assert repr(one) == repr(other)


class Asked(torch.Tensor):
    """A subclass that counts who asks for its attributes."""

    count = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Asked.count += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_is_recorded_and_not_asked(tmp_path):
    data = torch.randn(2, 3)

    def work():
        x = data.as_subclass(Asked)
        x.view(3, 2) + 1
        torch.cat([x, x])

    Asked.count = 0
    work()
    alone, Asked.count = Asked.count, 0
    tables = recorded(tmp_path / "run", work)
    assert Asked.count == alone
    calls, slots = tables[0]["calls"], tables[0]["slots"]
    shown = {name: [] for name in calls["name"]}
    for call, slot, number in zip(slots["call"], slots["slot"], slots["tensor"]):
        shown[calls["name"][calls["order"].index(call)]].append((slot, number is not None))
    assert shown["Aten.view.0.forward"] == [("input.0", True), ("output.0", True)]
    assert shown["Aten.add.0.forward"] == [("input.0", True), ("output.0", True)]
    assert shown["Aten.cat.0.forward"] == [("input.0.0", True), ("input.0.1", True), ("output.0", True)]


def test_an_operator_that_raises_is_recorded_with_what_went_in(tmp_path):
    def work():
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))

    tables = recorded(tmp_path / "run", work)[0]
    orders = dict(zip(tables["calls"]["name"], tables["calls"]["order"]))
    shown = [(call, slot) for call, slot in zip(tables["slots"]["call"], tables["slots"]["slot"])]
    assert [slot for call, slot in shown if call == orders["Aten.mm.0.forward"]] == ["input.0", "input.1"]
    assert [slot for call, slot in shown if call == orders["Aten.mm.1.forward"]] == ["input.0", "input.1", "output.0"]


def program(seed):
    """Return a random program of views, and of what may come between a tensor and a view of it."""
    random.seed(seed)
    steps = [
        (random.choice(["view", "view", "view", "write", "data", "storage", "new", "op"]), random.random())
        for _ in range(40)
    ]

    def run():
        torch.manual_seed(seed)
        held = [torch.randn(4, 6), nn.Parameter(torch.randn(6, 4)), torch.randn(4, 6, dtype=torch.complex64).conj()]
        held += [torch.zeros(0, 3), torch.arange(24).view(4, 6)]
        with torch.no_grad():
            for kind, chance in steps:
                tensor = held[int(chance * 1000) % len(held)]
                if kind == "view":
                    with suppress(RuntimeError, TypeError, IndexError):  # some tensors can't be looked at in that way
                        held.append(VIEWS[int(chance * 7919) % len(VIEWS)](tensor))
                elif kind == "write" and 0 not in tensor.stride():
                    tensor.add_(1)
                elif kind == "data" and type(tensor) is torch.Tensor:
                    tensor.data = tensor.data.clone()
                elif kind == "storage":
                    tensor.untyped_storage()
                elif kind == "new":
                    held[int(chance * 77) % len(held)] = torch.randn(4, 6)
                else:
                    held.append(tensor + 1)

    return run


VIEWS = [
    lambda x: x.t() if x.dim() == 2 else x.view(-1),
    lambda x: x.transpose(0, -1),
    lambda x: x[..., :1],
    lambda x: x[1:] if len(x) > 1 else x[:0],
    lambda x: x.reshape(-1),
    lambda x: x.unsqueeze(0),
    lambda x: x.expand(2, *x.shape),
    lambda x: torch.view_as_real(x.resolve_conj()) if x.is_complex() else x.view(x.shape),
    lambda x: x.imag if x.is_complex() else x.squeeze(),
    lambda x: x.view(torch.int32) if x.dtype == torch.float32 and x.is_contiguous() else x.detach(),
    lambda x: x.diagonal() if x.dim() == 2 else x.select(0, 0) if len(x) else x,
    lambda x: x.unbind(0)[0] if len(x) else x,
]


@pytest.mark.skipif(native.load() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("seed", range(8))
def test_a_view_has_the_number_that_it_has_where_torch_is_asked_for_it(seed, tmp_path):
    known = recorded(tmp_path / "known", program(seed), 3)
    with native.without():
        told = recorded(tmp_path / "told", program(seed), 3)
    for one, other in zip(known, told):
        one["calls"].pop("stack"), other["calls"].pop("stack")
        assert repr(one) == repr(other)
