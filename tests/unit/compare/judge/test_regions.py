"""Two tensors across the calls that lead to them and do not correspond."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from numscope.compare.judge.findings import Standing
from numscope.compare.judge.paths.regions import RegionCheck
from numscope.compare.judge.state import State
from numscope.core.dtypes import SINGLE
from tests.unit.compare.judge.tables import Array, W, X, chain, data, judged, off, state_of
from tests.unit.compare.scripted import Script, numbers

S = np.float32(0.125)


def scaled_product(before: bool, scale: np.float32 = S, error: float = 0.0) -> Script:
    """The scale applied before the product, or after it; then an exponential, whose output is off by `error`."""
    script = data(Script(), X, W)
    given = X
    if before:
        given = X * scale
        script.call("Tensor.mul.0.forward", {"input.0": X}, {"output.0": given})
    product = given @ W
    script.call("Torch.matmul.0.forward", {"input.0": given, "input.1": W}, {"output.0": product})
    if not before:
        scaled = product * scale
        script.call("Tensor.mul.0.forward", {"input.0": product}, {"output.0": scaled})
        product = scaled
    result = off(np.tanh(product), error) if error else np.tanh(product)
    script.call("Torch.tanh.0.forward", {"input.0": product}, {"output.0": result})
    return script


@pytest.mark.parametrize("scale", [0.125, 0.3], ids=["to the bit", "but for rounding"])
def test_calls_that_changed_places_are_no_origin(scale: float) -> None:
    """A suspicion is withdrawn if the two ways meet again within 24 calls: at once, to a twentieth of the error (a single
    number to 1/500, because a mean hides what is in its terms), or to the bit."""
    found = judged(scaled_product(True, np.float32(scale)), scaled_product(False, np.float32(scale)))
    assert found.findings == []
    assert found.verdict("Torch.tanh.0.forward") in ("equivalent", "identical")


def test_ways_that_part_are_suspected() -> None:
    """If the two ways part, what stands between is suspected: a call that only the target has is extra, one that only the
    reference has is missing."""
    for target, reference, who in (("scaled", "plain", "target"), ("plain", "scaled", "reference")):

        def script(kind: str) -> Script:
            made, given = data(Script(), X), X
            if kind == "scaled":
                given = X * S
                made.call("Tensor.mul.0.forward", {"input.0": X}, {"output.0": given})
            made.call("Torch.tanh.0.forward", {"input.0": given}, {"output.0": np.tanh(given)})
            return made

        found = judged(script(target), script(reference))
        assert found.named() == "Tensor.mul.0.forward"
        assert f"only the {who} has this call" in found.sentences()[0]


def test_a_fault_after_the_ways_met_is_another() -> None:
    found = judged(scaled_product(True, error=1e-3), scaled_product(False))
    assert [one.target for one in found.findings] == [4]
    assert found.verdict("Torch.tanh.0.forward") == "origin"


def last_pair(state: State) -> int:
    return len(state.corresponds) - 1


def ways(error: float, dtype: Array | type = np.float32, front: float = 0.0, rows: int = 16) -> tuple[Script, Script]:
    """Two ways from tanh's output, `addmm` or `matmul` and `add`, to a softmax whose input is off by `error`."""
    entrance = numbers((rows, 64), seed=3)
    result = (entrance @ W).astype(dtype)

    def way(fused: bool) -> Script:
        begin = off(entrance, front) if fused and front else entrance
        script = chain(("Torch.tanh", begin))
        if fused:
            last = off(result, error) if error else result.copy()
            script.call("Torch.addmm.0.forward", {"input.0": begin, "input.1": W}, {"output.0": last})
        else:
            half = begin @ W * np.float32(0.3)
            script.call("Torch.matmul.0.forward", {"input.0": begin, "input.1": W}, {"output.0": half})
            script.call("Torch.add.0.forward", {"input.0": half}, {"output.0": result})
            last = result
        script.call("Torch.softmax.0.forward", {"input.0": last}, {"output.0": numbers((16, 64), seed=9)})
        return script

    return way(True), way(False)


@pytest.mark.parametrize(("error", "standing"), [(1e-6, Standing.RIGHT), (2e-5, Standing.UNEXPLAINED)])
def test_two_ways_may_part_by_rounding(error: float, standing: Standing) -> None:
    """From the same entrance both ways must lead to the same tensor but for rounding: 24 u √m for m calls that compute (2 u
    √m below float32), and 32 times the error at the entrance (16 times where that error is above 0.2 %)."""
    state = state_of(*ways(error))
    pair = last_pair(state)
    (row,) = state.facts.given(pair)
    assert 1e-6 < 24 * SINGLE * 3**0.5 + 32 * 2.0**-26 < 2e-5
    assert RegionCheck(state).check(pair, row).standing is standing


@pytest.mark.parametrize(("error", "standing"), [(2e-5, Standing.RIGHT), (1e-4, Standing.UNEXPLAINED)])
def test_an_error_at_the_entrance_may_have_grown(error: float, standing: Standing) -> None:
    script, reference = ways(error, front=1e-6)
    state = state_of(script, reference)
    pair = last_pair(state)
    (entrance,), (row,) = state.facts.made(1), state.facts.given(pair)
    state.mark_right(*state.facts.tensors(entrance), 1e-6)
    assert RegionCheck(state).check(pair, row).standing is standing


def test_a_cast_at_the_end_may_round_a_few_numbers_the_other_way() -> None:
    """Where both ways compute in float32 and end in bf16, the last rounding is allowed too: 2 u of bf16 if one side alone
    rounds, else a tenth of that roundoff."""

    entrance = numbers((16, 64), seed=3)

    def way(fused: bool, error: float) -> Script:
        script, result = chain(("Torch.tanh", entrance)), entrance @ W
        if fused:
            given, cast = (off(result, error), "Tensor.to")
            script.call("Torch.addmm.0.forward", {"input.0": entrance, "input.1": W}, {"output.0": given})
        else:
            given, cast = result, "Tensor.bfloat16"
            script.call("Torch.matmul.0.forward", {"input.0": entrance, "input.1": W}, {"output.0": entrance})
            script.call("Torch.add.0.forward", {"input.0": entrance}, {"output.0": given})
        low = given.astype(ml_dtypes.bfloat16)
        script.call(f"{cast}.0.forward", {"input.0": given}, {"output.0": low})
        end = numbers((16, 64), seed=9)
        script.call("Torch.softmax.0.forward", {"input.0": low}, {"output.0": off(end, error) if error > 1e-3 else end})
        return script

    state = state_of(way(True, 1e-6), way(False, 0.0))
    (row,) = state.facts.given(last_pair(state))
    assert 24 * SINGLE * 3**0.5 < state.facts.error(row) < 0.1 * 2.0**-8  # a flip in the last bit of a few
    assert judged(way(True, 1e-6), way(False, 0.0)).findings == []
    assert judged(way(True, 1e-2), way(False, 0.0)).findings != []


def test_agreement_of_a_sign_proves_nothing() -> None:
    """A sign or a choice made from the tensor (argmax, Adam's first step, which has the same size whatever the gradient's),
    a constant tensor, and a single number, a loss, that agrees as far as bf16 can tell."""

    def script(extra: bool) -> Script:
        made = data(Script(), X)
        given = X
        if extra:
            given = X * np.float32(3)
            made.call("Tensor.mul.0.forward", {"input.0": X}, {"output.0": given})
        made.call("Torch.tanh.0.forward", {"input.0": given}, {"output.0": np.tanh(given)})
        made.call("Torch.argmax.0.forward", {"input.0": np.tanh(given)}, {"output.0": X.argmax(1)})
        return made

    found = judged(script(True), script(False))
    assert found.named() == "Tensor.mul.0.forward"


@pytest.mark.parametrize(("factor", "standing"), [(1.0, Standing.RIGHT), (1.000002, Standing.UNEXPLAINED)])
def test_a_factor_between_two_ways_is_no_rounding(factor: float, standing: Standing) -> None:
    """A factor in a region is held to a sixteenth, as at a call."""
    target, reference = ways(0.0, rows=256)
    target.arrays[-2] *= np.float32(factor)  # what softmax is given
    state = state_of(target, reference)
    pair = last_pair(state)
    (row,) = state.facts.given(pair)
    assert RegionCheck(state).check(pair, row).standing is standing
    if factor > 1:
        assert state.facts.error(row) < 24 * SINGLE * 3**0.5  # noise of that size would pass


def narrow_inside(opaque: bool, factor: float = 1.7, dtype: type = np.float16) -> Script:
    """Numbers that are multiplied in a narrow dtype, call by call, or in a compiled region that keeps them wide."""
    script = data(Script(), X)
    if opaque:
        result = X * np.float32(factor)
        script.call("Module.OptimizedModule.forward.0", {"input.0": X}, {"output.0": result}, module_class="Opt")
    else:
        low = X.astype(dtype)
        script.call("Tensor.to.0.forward", {"input.0": X}, {"output.0": low})
        product = (low * dtype(1.7)).astype(dtype)
        script.call("Tensor.mul.0.forward", {"input.0": low}, {"output.0": product})
        result = product.astype(np.float32)
        script.call("Tensor.to.1.forward", {"input.0": product}, {"output.0": result})
    script.call("Torch.tanh.0.forward", {"input.0": result}, {"output.0": np.tanh(result)})
    return script


def test_a_module_whose_inside_was_not_recorded_may_leave_out_the_casts_in_its_place() -> None:
    assert judged(narrow_inside(True), narrow_inside(False)).findings == []
    assert judged(narrow_inside(False), narrow_inside(True)).findings == []
    assert judged(narrow_inside(True, factor=1.75), narrow_inside(False)).findings
    # It excuses what the calls in its place round, and no more.
    assert judged(narrow_inside(True, factor=1.7005), narrow_inside(False, dtype=np.float32)).findings
