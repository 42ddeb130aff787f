"""The guard's judge, fed with calls: who made it, who passed it on, what waits for a loss scale."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numscope.capture.interned import Series, Strings
from numscope.capture.sites import Sites
from numscope.capture.torch.guard.calls import Item, OpenModule, Seen
from numscope.capture.torch.guard.judge import Judge
from numscope.capture.torch.guard.strike import Strike
from numscope.nonfinite.rule import Counts

CLEAN = Counts(elements=4)
NAN = Counts(nan=4, elements=4)
DOWN = Counts(neginf=1, elements=4)
MASK = 50  # the storage of a mask


class Court:
    """A judge, and the calls that are brought before it; a storage is a number."""

    def __init__(self, allow: tuple[str, ...] = ()) -> None:
        self.strings = Strings()
        self.sites = Sites()
        self.struck: list[Strike] = []
        self.judge = Judge(self.strings, self.sites, allow, self.struck.append)
        self._series: dict[str, Series] = {}

    def call(self, head: str, kind: str = "api", module: str = "") -> Seen:
        template = "{head}.step.{n}" if kind == "optimizer" else "{head}.{n}.{phase}"
        series = self._series.setdefault(head, Series(self.strings, head, template))
        parent = None
        if module:
            parent = OpenModule(-1, self.strings.id(module), self.strings.id("Block"), module, -1, "", None)
            template = "{head}.{phase}.{n}"
            owner = Series(self.strings, f"Module.{module}.Block", template)
            parent.outer = None
            parent.seen = Seen(owner, 0, "module", "block", parent, -1)
        op = head.rpartition(".")[2]
        return Seen(series, series.next(0), kind, op, parent, self.sites.intern(sys._getframe(1), -1))

    @property
    def names(self) -> list[str]:
        return [strike.origin.call for strike in self.struck]


def item(slot: str, key: int, counts: Counts, parameter: str = "") -> Item:
    return Item(slot, key, counts, None, parameter)


def test_the_first_is_an_origin_and_what_takes_its_output_inherits() -> None:
    court = Court()
    court.judge.forward(court.call("Torch.exp"), [item("input.0", 1, CLEAN)], [item("output.0", 2, NAN)], [])
    court.judge.forward(court.call("Tensor.mul"), [item("input.0", 2, NAN)], [item("output.0", 3, NAN)], [])
    assert court.names == ["Torch.exp.0.forward"]
    origin = court.struck[0].origin
    assert origin.source is not None
    assert origin.source.file == __file__
    assert (origin.details["slot"], origin.details["nan"]) == ("output.0", 4)


@given(st.lists(st.sampled_from(["exp", "mul", "softmax", "add"]), min_size=1, max_size=12))
def test_a_chain_has_one_origin(ops: list[str]) -> None:
    court = Court()
    counts = CLEAN
    for key, op in enumerate(ops):
        court.judge.forward(
            court.call(f"Torch.{op}"), [item("input.0", key, counts)], [item("output.0", key + 1, NAN)], []
        )
        counts = NAN
    assert court.names == [f"Torch.{ops[0]}.0.forward"]


def test_a_mask_from_outside_stays_meant_until_it_makes_a_nan() -> None:
    court = Court()
    scores = [item("input.0", 1, CLEAN), item("input.1", MASK, DOWN)]
    court.judge.forward(court.call("Tensor.add"), scores, [item("output.0", 2, DOWN)], [])
    assert court.judge.marks.get(MASK) == court.judge.marks.get(2) == "meant"
    court.judge.forward(court.call("Torch.softmax"), [item("input.0", 2, DOWN)], [item("output.0", 3, NAN)], [])
    assert court.names == ["Torch.softmax.0.forward"]
    assert "out of infinities" in court.struck[0].origin.reason


@pytest.mark.parametrize(
    ("allow", "silent"),
    [
        ("Torch.log", True),
        ("Torch.log.0.forward", True),
        ("*log*", True),
        ("blocks.1", True),
        ("blocks.2", False),
        ("exp", False),
    ],
)
def test_the_users_list_is_of_calls_and_modules(allow: str, silent: bool) -> None:
    court = Court((allow,))
    call = court.call("Torch.log", module="blocks.1")
    court.judge.forward(call, [item("input.0", 1, CLEAN)], [item("output.0", 2, DOWN)], [])
    assert (court.names == []) == silent
    court.judge.forward(court.call("Tensor.add"), [item("input.0", 2, DOWN)], [item("output.0", 3, DOWN)], [])
    assert len(court.names) == (0 if silent else 1)


def test_what_is_allowed_may_still_make_something_wrong() -> None:
    court = Court(("Torch.log",))
    court.judge.forward(court.call("Torch.log"), [item("input.0", 1, CLEAN)], [item("output.0", 2, DOWN)], [])
    court.judge.forward(court.call("Torch.softmax"), [item("input.0", 2, DOWN)], [item("output.0", 3, NAN)], [])
    assert court.names == ["Torch.softmax.0.forward"]


def test_a_parameter_is_named_with_its_module() -> None:
    court = Court()
    given_ = [item("input.0", 1, CLEAN), item("input.1", 9, NAN, "blocks.0.weight")]
    court.judge.forward(court.call("Functional.linear", module="blocks.0"), given_, [item("output.0", 2, NAN)], [])
    origin = court.struck[0].origin
    assert (origin.call, origin.kind) == ("Module.blocks.0.Block.forward.0", "parameter")
    assert origin.details["slot"] == "parameters.weight"


def test_data_is_judged_once_however_often_it_enters() -> None:
    court = Court()
    for _ in range(3):
        court.judge.data(court.call("Data.Model", "data"), [item("output.0", 1, NAN)])
    assert len(court.struck) == 1


def test_backward_of_finite_gradients_is_an_origin_and_the_rest_of_the_pass_inherits() -> None:
    court = Court()
    root, product = court.call("Torch.sqrt"), court.call("Tensor.mul")
    court.judge.backward(root, [item("input.0", 1, CLEAN)], [item("output.0", 2, NAN)])
    court.judge.backward(product, [item("input.0", 7, NAN)], [item("output.0", 3, NAN)])  # a sum: another tensor
    assert court.names == ["Torch.sqrt.0.backward"]
    court.judge.new_pass()
    court.judge.backward(product, [item("input.0", 8, NAN)], [item("output.0", 4, NAN)])
    assert "comes into Tensor.mul.0.backward" in court.struck[1].origin.reason


def test_backward_of_a_call_that_went_wrong_forward_is_inherited() -> None:
    court = Court()
    call = court.call("Torch.exp")
    court.judge.forward(call, [item("input.0", 1, CLEAN)], [item("output.0", 2, NAN)], [])
    court.judge.backward(call, [item("input.0", 3, CLEAN)], [item("output.0", 4, NAN)])
    assert court.names == ["Torch.exp.0.forward"]


def overflow(court: Court) -> None:
    court.judge.backward(court.call("Tensor.mul"), [item("input.0", 1, CLEAN)], [item("output.0", 2, NAN)])


def test_under_a_loss_scale_an_overflow_waits_and_a_skipped_step_settles_it() -> None:
    court = Court()
    court.judge.set_scaled(True, False)
    overflow(court)
    assert court.names == []
    court.judge.settle()
    court.judge.stepping([item("parameters_grad.weight", 5, NAN)])
    assert court.names == []


def test_a_step_that_takes_what_waits_makes_it_an_origin() -> None:
    court = Court()
    court.judge.set_scaled(True, False)
    overflow(court)
    court.judge.new_pass()
    overflow(court)
    court.judge.stepping([item("parameters_grad.weight", 5, NAN)])
    assert court.names == ["Tensor.mul.0.backward"]


def test_a_step_with_finite_gradients_settles_too() -> None:
    court = Court()
    court.judge.set_scaled(True, False)
    overflow(court)
    court.judge.stepping([item("parameters_grad.weight", 5, CLEAN), item("parameters.weight", 6, CLEAN)])
    assert court.names == []
    overflow(court)  # the scale is no longer in force
    assert court.names == ["Tensor.mul.1.backward"]


@pytest.mark.parametrize(("world", "origins"), [(2, 0), (1, 1)])
def test_what_a_collective_brings_is_another_ranks(world: int, origins: int) -> None:
    court = Court()
    call = court.call("Distributed.all_reduce", "collective")
    court.judge.collective(call, "forward", [item("input.0", 1, CLEAN)], [item("output.0", 1, NAN)], world)
    assert len(court.struck) == origins
    assert court.judge.inherited_ranks == ([] if origins else ["Distributed.all_reduce.0.forward"])
    court.judge.optimizer(
        court.call("Optimizer.SGD", "optimizer"), [item("parameters_grad.w", 1, NAN)], [item("output.w", 9, NAN)]
    )
    assert len(court.struck) == origins


def test_a_mask_may_be_broadcast() -> None:
    court = Court()
    court.judge.data(court.call("Data.Model", "data"), [item("output.0", MASK, DOWN)])
    call = court.call("Distributed.broadcast", "collective")
    court.judge.collective(call, "forward", [item("input.0", MASK, DOWN)], [item("output.0", MASK, DOWN)], 2)
    assert (court.names, court.judge.inherited_ranks) == ([], [])


def optimizer_step(court: Court, gradient: Counts, before: Counts = CLEAN, after: Counts = NAN) -> None:
    given_: list[Any] = [item("parameters.w", 1, before), item("parameters_grad.w", 2, gradient)]
    court.judge.optimizer(court.call("Optimizer.Adam", "optimizer"), given_, [item("output.w", 1, after)])


def test_an_optimizer_that_makes_it_out_of_finite_values_is_an_origin() -> None:
    court = Court()
    optimizer_step(court, CLEAN, after=CLEAN)
    assert court.names == []
    optimizer_step(court, CLEAN)
    assert court.names == ["Optimizer.Adam.step.1"]


def test_a_gradient_that_nobody_made_is_named() -> None:
    court = Court()
    optimizer_step(court, NAN)
    assert court.struck[0].origin.details["slot"] == "parameters_grad.w"


def test_a_line_inside_the_users_optimizer_is_the_line_that_is_told() -> None:
    court = Court()
    court.judge.set_inside(True)
    court.judge.hint = ("Tensor.div.0.forward", court.sites.intern(sys._getframe(), -1))
    court.judge.set_inside(False)
    optimizer_step(court, CLEAN)
    assert "Tensor.div.0.forward inside it" in court.struck[0].origin.reason
