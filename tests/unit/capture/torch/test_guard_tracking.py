"""The guard as the tracker's adapter: live calls, storages, parameters and the user's list, and what comes of them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numscope.capture.recording.interned import Series, Strings
from numscope.capture.sites import Sites
from numscope.capture.torch.guard.calls import LiveCall, OpenModule
from numscope.capture.torch.guard.tracking import LiveOrigin, LiveTensor, LiveTracking
from numscope.nonfinite.rule import Counts

CLEAN = Counts(elements=4)
NAN = Counts(nan=4, elements=4)
DOWN = Counts(neginf=1, elements=4)
MASK = 50  # the storage of a mask


class Job:
    """A job whose calls are made up; a storage is a number."""

    def __init__(self, allow: tuple[str, ...] = ()) -> None:
        self.strings = Strings()
        self.sites = Sites()
        self.found: list[LiveOrigin] = []
        self.tracking = LiveTracking(self.strings, self.sites, self.found.append, allow)
        self.tracker = self.tracking.tracker
        self._series: dict[str, Series] = {}

    def call(self, head: str, kind: str = "api", module: str = "") -> LiveCall:
        template = "{head}.step.{n}" if kind == "optimizer" else "{head}.{n}.{phase}"
        series = self._series.setdefault(head, Series(self.strings, head, template))
        parent = None
        if module:
            parent = OpenModule(-1, self.strings.id(module), self.strings.id("Block"), module, -1, "", None)
            template = "{head}.{phase}.{n}"
            owner = Series(self.strings, f"Module.{module}.Block", template)
            parent.outer = None
            parent.call = LiveCall(owner, 0, "module", "block", parent, -1)
        op = head.rpartition(".")[2]
        return LiveCall(series, series.next(0), kind, op, parent, self.sites.intern(sys._getframe(1), -1))

    @property
    def names(self) -> list[str]:
        return [origin.report.call for origin in self.found]


def tensor(slot: str, key: int, counts: Counts, parameter: str = "") -> LiveTensor:
    return LiveTensor(slot, key, counts, None, parameter)


def test_the_first_is_an_origin_and_what_takes_its_output_inherits() -> None:
    job = Job()
    job.tracker.forward(job.call("Torch.exp"), [tensor("input.0", 1, CLEAN)], [tensor("output.0", 2, NAN)], [])
    job.tracker.forward(job.call("Tensor.mul"), [tensor("input.0", 2, NAN)], [tensor("output.0", 3, NAN)], [])
    assert job.names == ["Torch.exp.0.forward"]
    origin = job.found[0].report
    assert origin.source is not None
    assert origin.source.file == __file__
    assert (origin.details["slot"], origin.details["nan"]) == ("output.0", 4)


@given(st.lists(st.sampled_from(["exp", "mul", "softmax", "add"]), min_size=1, max_size=12))
def test_a_chain_has_one_origin(ops: list[str]) -> None:
    job = Job()
    counts = CLEAN
    for key, op in enumerate(ops):
        job.tracker.forward(
            job.call(f"Torch.{op}"), [tensor("input.0", key, counts)], [tensor("output.0", key + 1, NAN)], []
        )
        counts = NAN
    assert job.names == [f"Torch.{ops[0]}.0.forward"]


def test_a_mask_from_outside_stays_meant_until_it_makes_a_nan() -> None:
    job = Job()
    scores = [tensor("input.0", 1, CLEAN), tensor("input.1", MASK, DOWN)]
    job.tracker.forward(job.call("Tensor.add"), scores, [tensor("output.0", 2, DOWN)], [])
    assert job.tracking.marks.get(MASK) == job.tracking.marks.get(2) == "meant"
    job.tracker.forward(job.call("Torch.softmax"), [tensor("input.0", 2, DOWN)], [tensor("output.0", 3, NAN)], [])
    assert job.names == ["Torch.softmax.0.forward"]
    assert "out of infinities" in job.found[0].report.reason


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
    job = Job((allow,))
    call = job.call("Torch.log", module="blocks.1")
    job.tracker.forward(call, [tensor("input.0", 1, CLEAN)], [tensor("output.0", 2, DOWN)], [])
    assert (job.names == []) == silent
    job.tracker.forward(job.call("Tensor.add"), [tensor("input.0", 2, DOWN)], [tensor("output.0", 3, DOWN)], [])
    assert len(job.names) == (0 if silent else 1)


def test_what_is_allowed_may_still_make_something_wrong() -> None:
    job = Job(("Torch.log",))
    job.tracker.forward(job.call("Torch.log"), [tensor("input.0", 1, CLEAN)], [tensor("output.0", 2, DOWN)], [])
    job.tracker.forward(job.call("Torch.softmax"), [tensor("input.0", 2, DOWN)], [tensor("output.0", 3, NAN)], [])
    assert job.names == ["Torch.softmax.0.forward"]


def test_a_parameter_is_named_with_its_module() -> None:
    job = Job()
    given_ = [tensor("input.0", 1, CLEAN), tensor("input.1", 9, NAN, "blocks.0.weight")]
    job.tracker.forward(job.call("Functional.linear", module="blocks.0"), given_, [tensor("output.0", 2, NAN)], [])
    origin = job.found[0].report
    assert (origin.call, origin.kind) == ("Module.blocks.0.Block.forward.0", "parameter")
    assert origin.details["slot"] == "parameters.weight"


def test_data_is_judged_once_however_often_it_enters() -> None:
    job = Job()
    for _ in range(3):
        job.tracker.data(job.call("Data.Model", "data"), [tensor("output.0", 1, NAN)])
    assert len(job.found) == 1


def test_backward_of_finite_gradients_is_an_origin_and_the_rest_of_the_pass_inherits() -> None:
    job = Job()
    root, product = job.call("Torch.sqrt"), job.call("Tensor.mul")
    job.tracker.backward(root, [tensor("input.0", 1, CLEAN)], [tensor("output.0", 2, NAN)])
    job.tracker.backward(product, [tensor("input.0", 7, NAN)], [tensor("output.0", 3, NAN)])  # a sum: another tensor
    assert job.names == ["Torch.sqrt.0.backward"]
    job.tracker.new_pass()
    job.tracker.backward(product, [tensor("input.0", 8, NAN)], [tensor("output.0", 4, NAN)])
    assert "comes into Tensor.mul.0.backward" in job.found[1].report.reason


def test_backward_of_a_call_that_went_wrong_forward_is_inherited() -> None:
    job = Job()
    call = job.call("Torch.exp")
    job.tracker.forward(call, [tensor("input.0", 1, CLEAN)], [tensor("output.0", 2, NAN)], [])
    job.tracker.backward(call, [tensor("input.0", 3, CLEAN)], [tensor("output.0", 4, NAN)])
    assert job.names == ["Torch.exp.0.forward"]


def overflow(job: Job) -> None:
    job.tracker.backward(job.call("Tensor.mul"), [tensor("input.0", 1, CLEAN)], [tensor("output.0", 2, NAN)])


def test_under_a_loss_scale_an_overflow_waits_and_a_skipped_step_settles_it() -> None:
    job = Job()
    job.tracker.set_scaled(True, False)
    overflow(job)
    assert job.names == []
    job.tracker.settle()
    job.tracker.stepping([tensor("parameters_grad.weight", 5, NAN)])
    assert job.names == []


def test_a_step_that_takes_what_waits_makes_it_an_origin() -> None:
    job = Job()
    job.tracker.set_scaled(True, False)
    overflow(job)
    job.tracker.new_pass()
    overflow(job)
    job.tracker.stepping([tensor("parameters_grad.weight", 5, NAN)])
    assert job.names == ["Tensor.mul.0.backward"]


def test_a_step_with_finite_gradients_settles_too() -> None:
    job = Job()
    job.tracker.set_scaled(True, False)
    overflow(job)
    job.tracker.stepping([tensor("parameters_grad.weight", 5, CLEAN), tensor("parameters.weight", 6, CLEAN)])
    assert job.names == []
    overflow(job)  # the scale is no longer in force
    assert job.names == ["Tensor.mul.1.backward"]


@pytest.mark.parametrize(("world", "origins"), [(2, 0), (1, 1)])
def test_what_a_collective_brings_is_another_ranks(world: int, origins: int) -> None:
    job = Job()
    job.tracker.world = world
    call = job.call("Distributed.all_reduce", "collective")
    job.tracker.collective(
        call, "forward", [tensor("input.0", 1, CLEAN)], [tensor("output.0", 1, NAN)], alone=world == 1
    )
    assert len(job.found) == origins
    assert job.tracking.arrived_through == ([] if origins else ["Distributed.all_reduce.0.forward"])
    job.tracker.optimizer(
        job.call("Optimizer.SGD", "optimizer"), [tensor("parameters_grad.w", 1, NAN)], [tensor("output.w", 9, NAN)]
    )
    assert len(job.found) == origins


def test_a_mask_may_be_broadcast() -> None:
    job = Job()
    job.tracker.data(job.call("Data.Model", "data"), [tensor("output.0", MASK, DOWN)])
    call = job.call("Distributed.broadcast", "collective")
    job.tracker.collective(call, "forward", [tensor("input.0", MASK, DOWN)], [tensor("output.0", MASK, DOWN)])
    assert (job.names, job.tracking.arrived_through) == ([], [])


def optimizer_step(job: Job, gradient: Counts, before: Counts = CLEAN, after: Counts = NAN) -> None:
    given_: list[Any] = [tensor("parameters.w", 1, before), tensor("parameters_grad.w", 2, gradient)]
    job.tracker.optimizer(job.call("Optimizer.Adam", "optimizer"), given_, [tensor("output.w", 1, after)])


def test_an_optimizer_that_makes_it_out_of_finite_values_is_an_origin() -> None:
    job = Job()
    optimizer_step(job, CLEAN, after=CLEAN)
    assert job.names == []
    optimizer_step(job, CLEAN)
    assert job.names == ["Optimizer.Adam.step.1"]


def test_a_gradient_that_nobody_made_is_named() -> None:
    job = Job()
    optimizer_step(job, NAN)
    assert job.found[0].report.details["slot"] == "parameters_grad.w"


def test_a_line_inside_the_users_optimizer_is_the_line_that_is_told() -> None:
    job = Job()
    step = job.call("Optimizer.Mine", "optimizer")
    job.tracker.set_inside_optimizer(True)
    inner = job.call("Tensor.div")
    job.tracker.forward(inner, [tensor("input.0", 3, CLEAN)], [tensor("output.0", 4, NAN)])
    job.tracker.set_inside_optimizer(False)
    given_ = [tensor("parameters.w", 1, CLEAN), tensor("parameters_grad.w", 2, CLEAN)]
    job.tracker.optimizer(step, given_, [tensor("output.w", 1, NAN)])
    assert job.names == ["Optimizer.Mine.step.0"]
    report = job.found[0].report
    assert "Tensor.div.0.forward inside it" in report.reason
    assert report.source is not None
    assert report.source.line == job.sites.source(inner.site)["line"]  # type: ignore[index]
