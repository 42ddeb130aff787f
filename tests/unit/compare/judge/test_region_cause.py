"""Which call of a region is named: the rules of docs/explanation/regions.md in their order."""

from __future__ import annotations

import numpy as np

from numscope.compare.judge.findings import ErrorSizes
from numscope.compare.judge.paths.dataflow import RegionPair, region
from numscope.compare.judge.paths.region_cause import region_cause
from numscope.compare.judge.reasons import AnotherLayout
from numscope.compare.judge.state import State
from tests.unit.compare.judge.tables import Array, W, X, data, judged, state_of
from tests.unit.compare.scripted import Script, numbers

G = numbers((16, 64), seed=3)


def ended(script: Script, last: Array) -> Script:
    script.call("Torch.softmax.0.forward", {"input.0": last}, {"output.0": np.exp(np.tanh(last))})
    return script


def regions_of(state: State, row: int) -> RegionPair:
    t, r = state.facts.tensors(row)
    return RegionPair(
        region(state.facts.flow_a, t, state.target.partner), region(state.facts.flow_b, r, state.reference.partner)
    )


def test_a_pair_whose_arguments_differ_comes_first() -> None:
    """A pair whose arguments differ in a way that changes numbers."""

    def script(target: bool) -> Script:
        made = data(Script(), X)
        first = G * np.float32(1.5 if target else 1)
        given = {"input.0": X, "input.1": W} if target else {"input.0": X}
        made.call("Torch.add.0.forward", given, {"output.0": first}, arguments={"alpha": 1.5 if target else 1.0})
        second = first * np.float32(2)
        made.call("Torch.exp.0.forward", {"input.0": first}, {"output.0": second})
        return ended(made, second)

    found = judged(script(True), script(False))
    assert found.named() == "Torch.add.0.forward"
    assert [str(one) for one in found.findings[0].differences] == ["alpha 1.5 against 1.0"]


def test_where_one_side_alone_draws_that_call() -> None:
    """Where one side alone draws (a dropout that changes what it is given), that call."""

    def script(target: bool) -> Script:
        made = data(Script(), X)
        last = X
        if target:
            shifted = X + np.float32(1)
            made.call("Torch.add.0.forward", {"input.0": X}, {"output.0": shifted})
            dropped = (shifted * (G > 0)).astype(np.float32)
            made.call("Functional.dropout.0.forward", {"input.0": shifted}, {"output.0": dropped})
            last = dropped
        return ended(made, last)

    assert judged(script(True), script(False)).named() == "Functional.dropout.0.forward"


def test_elements_that_are_moved_elsewhere_come_before_what_computes_with_them() -> None:
    """A call that moves elements to another place (`repeat` for `repeat_interleave`), before the first that computes with
    them."""

    def script(target: bool) -> Script:
        made = data(Script(), X)
        moved = np.tile(X, (2, 1)) if target else np.repeat(X, 2, 0)
        made.call(
            "Tensor.repeat.0.forward" if target else "Torch.repeat_interleave.0.forward",
            {"input.0": X},
            {"output.0": moved},
        )
        last = moved
        if target:
            last = moved * np.float32(2)
            made.call("Tensor.mul.0.forward", {"input.0": moved}, {"output.0": last})
        return ended(made, last)

    found = judged(script(True), script(False))
    assert found.named() == "Tensor.repeat.0.forward"
    assert "the reference has repeat_interleave in its place" in found.sentences()[0]


def test_the_first_computing_call_that_one_side_alone_has() -> None:
    """The first computing call that one side alone has."""

    def script(target: bool) -> Script:
        made = data(Script(), X)
        last = X
        if target:
            turned = X.reshape(64, 16)
            made.call("Tensor.view.0.forward", {"input.0": X}, {"output.0": turned})
            doubled = turned * np.float32(2)
            made.call("Tensor.mul.0.forward", {"input.0": turned}, {"output.0": doubled})
            last = doubled.reshape(16, 64).copy()
            made.call("Tensor.view.1.forward", {"input.0": doubled}, {"output.0": last})
        return ended(made, last)

    assert judged(script(True), script(False)).named() == "Tensor.mul.0.forward"
    found = judged(script(False), script(True))
    assert found.named() == "Tensor.mul.0.forward"
    assert "only the reference has this call" in found.sentences()[0]


def test_a_call_that_writes_into_a_tensor_which_is_read_later() -> None:
    """Where a call writes into a tensor that is read later and its counterpart does not, that call."""
    positive = np.maximum(X, 0)

    def script(target: bool) -> Script:
        made = data(Script(), X)
        hidden = X @ W
        made.call("Functional.linear.0.forward", {"input.0": X, "input.1": W}, {"output.0": hidden})
        positive = np.maximum(hidden, 0)
        name = "Tensor.relu_.0.forward" if target else "Tensor.relu.0.forward"
        made.call(name, {"input.0": hidden}, {"output.0": positive})
        read = positive if target else hidden
        made.call("Tensor.add.0.forward", {"input.0": read}, {"output.0": read + G})
        return made

    found = judged(script(True), script(False))
    assert found.named() == "Tensor.relu_.0.forward"
    assert "it writes into its input, which the reference's leaves as it is" in found.sentences()[0]
    assert positive.any()


def test_a_call_that_is_given_another_tensor_which_right_calls_made() -> None:
    """Where an input is another tensor than the reference's and right calls made both, a call without counterpart that
    chose one of them once more (`levels[0]` a second time), before the call that is given it."""

    def script(target: bool) -> Script:
        made = data(Script(), X)
        for number, array in enumerate((G, G + np.float32(1))):
            made.call(f"Torch.tanh.{number}.forward", {"input.0": X}, {"output.0": array})
        last = made.arrays[1] if target else made.arrays[2]
        return ended(made, last)

    found = judged(script(True), script(False))
    assert found.named() == "Torch.softmax.0.forward"
    assert "is another tensor than the reference's" in found.sentences()[0]


def test_cleared_calls_come_last() -> None:
    """A call that led to a right result before, such as a mask that an earlier layer used, is named only if no other is
    left."""

    def script(target: bool) -> Script:
        made, last = data(Script(), X), X
        for name in ("exp", "tanh") if target else ():
            given, last = last, numbers((16, 64), seed=len(made.arrays))
            made.call(f"Torch.{name}.0.forward", {"input.0": given}, {"output.0": last})
        return ended(made, last)

    def named(*cleared: int) -> str:
        state = state_of(script(True), script(False))
        state.clear(cleared, ())
        (row,) = state.facts.given(1)
        finding = region_cause(state, 1, row, regions_of(state, row), ErrorSizes(1.0, 1e-6))
        return state.facts.a.calls.name(finding.target)

    assert named() == "Torch.exp.0.forward"
    assert named(1) == "Torch.tanh.0.forward"
    assert named(1, 2) == "Torch.exp.0.forward"


def test_a_pair_that_does_something_else_before_the_lone_calls() -> None:
    """A pair with another operand, or another operator in its place, if it runs before the calls that one side alone
    has."""

    def script(target: bool) -> Script:
        made = data(Script(), X, W)
        first = G * np.float32(2 if target else 1)
        made.call(
            "Torch.add.0.forward", {"input.0": X, "input.1": W} if target else {"input.0": X}, {"output.0": first}
        )
        last = first
        if target:
            last = first * np.float32(3)
            made.call("Torch.mul.0.forward", {"input.0": first}, {"output.0": last})
        return ended(made, last)

    assert judged(script(True), script(False)).named() == "Torch.add.0.forward"


def test_a_pair_that_lays_out_in_another_shape() -> None:
    """Where nothing but layouts stands between, the pair that lays out in another shape."""

    def script(target: bool) -> Script:
        made = data(Script(), X)
        sizes = (64, 16) if target else (16, 64)
        last = X.reshape(sizes).copy()
        made.call("Tensor.reshape.0.forward", {"input.0": X}, {"output.0": last}, arguments={"shape": list(sizes)})
        if target:
            turned = last.T.copy()
            made.call("Tensor.transpose.0.forward", {"input.0": last}, {"output.0": turned})
            last = turned
        return ended(made, last)

    state = state_of(script(True), script(False))
    (row,) = state.facts.given(2)
    finding = region_cause(state, 2, row, regions_of(state, row), ErrorSizes(1.0, 1e-6))
    assert finding.reason == AnotherLayout()
    assert state.facts.a.calls.name(finding.target) == "Tensor.reshape.0.forward"


def test_results_that_both_sides_have_bound_the_region() -> None:
    """Results that both sides have bound the region, whatever calls made them"""

    def script(target: bool) -> Script:
        made = data(Script(), X)
        made.call("Torch.neg.0.forward" if target else "Torch.exp.0.forward", {"input.0": X}, {"output.0": G})
        last = G
        if target:
            last = G * np.float32(3)
            made.call("Torch.mul.0.forward", {"input.0": G}, {"output.0": last})
        return ended(made, last)

    assert judged(script(True), script(False)).named() == "Torch.mul.0.forward"


def masked(script: Script, target: bool) -> Script:
    """The target fills where its mask of bools lets in; the reference, after a product with ones, where it does not."""
    allowed, all_of_it = G > 0, np.ones((1, 64), dtype=np.bool_)
    data(script, X)
    script.call("Torch.gt.0.forward", {"input.0": X}, {"output.0": allowed})
    if target:
        script.call("Tensor.to.0.forward", {"input.0": allowed}, {"output.0": allowed.astype(np.float32)})
        biased = np.where(allowed, np.float32(-3e38), allowed.astype(np.float32))
        script.call("Tensor.masked_fill.0.forward", {"input.0": allowed.astype(np.float32)}, {"output.0": biased})
    else:
        product = allowed & all_of_it
        script.call("Tensor.mul.0.forward", {"input.0": allowed, "input.1": all_of_it}, {"output.0": product})
        biased = np.where(allowed, np.float32(0), np.float32(-3e38))
        script.call("Torch.where.0.forward", {"input.0": product}, {"output.0": biased})
        script.call("Tensor.to.0.forward", {"input.0": biased}, {"output.0": biased})
    powers = np.exp(X + np.maximum(biased, -80))
    shares = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)
    script.call("Torch.softmax.0.forward", {"input.0": biased}, {"output.0": shares})
    return script


def test_an_input_that_cannot_be_told_apart_is_not_the_same_and_what_changes_nothing_is_passed_over() -> None:
    """Where the results of a call that is given them differ, and calls of one side alone made one of them, those calls
    are the region that is searched."""
    found = judged(masked(Script(), True), masked(Script(), False))
    assert found.named() in ("Torch.where.0.forward", "Tensor.masked_fill.0.forward")
    assert "inputs identical" not in found.sentences()[0]
