"""Verdicts on scripted steps: what is an origin, what is inherited, what rounding explains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numscope.compare.comparison import Comparison, compare
from tests.unit.compare.scripted import Script, numbers

X = numbers((16, 64))


def rounded(x: Any, seed: int = 7, size: float = 6e-8) -> Any:
    return (x * (1 + size * np.random.default_rng(seed).standard_normal(x.shape))).astype(x.dtype)


def compared(tmp_path: Path, target: Script, reference: Script, keep: bool, **options: Any) -> Comparison:
    return compare(target.write(tmp_path / "a", keep), reference.write(tmp_path / "b", keep), **options)


@pytest.fixture(params=[True, False], ids=["tensors", "stats"])
def keep(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def chain(change: Any = None, noise: bool = False, arguments: dict[str, Any] | None = None) -> Script:
    """data → linear → gelu → layer_norm → linear; `change` spoils gelu's output."""
    script = Script()
    weight = numbers((64, 64), seed=1) / np.float32(8)
    script.call("Data.Net.0.input", made={"output.0": X})
    up = X @ weight
    up = rounded(up) if noise else up
    script.call("Functional.linear.0.forward", {"input.0": X, "input.1": weight}, {"output.0": up}, module="up")
    act = np.tanh(up)
    act = rounded(act, 8) if noise else act
    act = change(act) if change else act
    script.call("Functional.gelu.0.forward", {"input.0": up}, {"output.0": act}, module="act", arguments=arguments)
    norm = (act - act.mean(-1, keepdims=True)) / np.sqrt(act.var(-1, keepdims=True) + np.float32(1e-5))
    norm = rounded(norm, 9) if noise else norm
    script.call("Functional.layer_norm.0.forward", {"input.0": act}, {"output.0": norm}, module="norm")
    down = norm @ weight
    script.call("Functional.linear.1.forward", {"input.0": norm, "input.1": weight}, {"output.0": down}, module="down")
    return script


def verdicts(comparison: Comparison) -> dict[str, str]:
    return dict(zip(comparison.calls["target_name"].to_pylist(), comparison.calls["verdict"].to_pylist()))


def test_the_same_is_identical(tmp_path: Path, keep: bool) -> None:
    comparison = compared(tmp_path, chain(), chain(), keep)
    assert comparison.verdict == "identical"
    assert comparison.report.prefix["calls"] == 5
    assert comparison.origin is None


def test_rounding_everywhere_is_equivalent(tmp_path: Path, keep: bool) -> None:
    comparison = compared(tmp_path, chain(noise=True), chain(), keep)
    assert comparison.verdict == "equivalent"
    assert comparison.report.counts["origin"] == 0


@pytest.mark.parametrize("noise", [False, True])
def test_the_origin_is_the_call_whose_output_is_wrong_though_its_inputs_are_right(
    tmp_path: Path, keep: bool, noise: bool
) -> None:
    def spoil(x: Any) -> Any:
        return rounded(x, 3, 1e-3)

    comparison = compared(tmp_path, chain(spoil, noise), chain(), keep)
    assert comparison.verdict == "diverged"
    assert comparison.origin is not None
    assert comparison.origin.call == "Functional.gelu.0.forward"
    assert comparison.origin.relative == pytest.approx(1e-3, rel=0.4)
    found = verdicts(comparison)
    assert found["Functional.gelu.0.forward"] == "origin"
    assert found["Functional.layer_norm.0.forward"] == found["Functional.linear.1.forward"] == "inherited"


def test_a_difference_below_rounding_is_an_origin_where_the_arguments_differ(tmp_path: Path, keep: bool) -> None:
    def spoil(x: Any) -> Any:
        return rounded(x, 3, 1.2e-7)

    target = chain(spoil, arguments={"approximate": "tanh"})
    comparison = compared(tmp_path, target, chain(spoil and None, arguments={"approximate": "none"}), keep)
    assert comparison.origin is not None
    assert "approximate 'tanh' against 'none'" in comparison.origin.reason
    assert comparison.origin.mechanism == "semantic"


def test_a_wrong_factor_is_seen_below_what_rounding_would_explain(tmp_path: Path) -> None:
    def bf16(script_change: float) -> Script:
        import ml_dtypes

        script = Script()
        x = numbers((64, 64)).astype(ml_dtypes.bfloat16)
        script.call("Data.Net.0.input", made={"output.0": x})
        out = (x.astype(np.float32) * script_change).astype(ml_dtypes.bfloat16)
        script.call("Tensor.mul.0.forward", {"input.0": x}, {"output.0": out})
        return script

    comparison = compared(tmp_path, bf16(55.5), bf16(55.4256), keep=True)
    assert comparison.origin is not None
    assert comparison.origin.call == "Tensor.mul.0.forward"


def test_data_that_differs_is_said_first(tmp_path: Path, keep: bool) -> None:
    target = chain()
    other = Script()
    other.call("Data.Net.0.input", made={"output.0": numbers((16, 64), seed=99)})
    for call in target.calls[1:]:
        given = {
            s["slot"]: target.arrays[s["tensor"]]
            for s in target.slots
            if s["call"] == call["order"] and s["slot"].startswith("input")
        }
        other.call(call["name"], given, {"output.0": numbers((16, 64), seed=5)}, module=call["module"])
    comparison = compared(tmp_path, other, target, keep)
    assert comparison.origin is not None
    assert (comparison.origin.kind, comparison.origin.phase) == ("data", "input")
    assert comparison.origin.mechanism == "input"


def with_parameter(weight: Any) -> Script:
    script = Script()
    script.call("Data.Net.0.input", made={"output.0": X})
    outer = script.call(
        "Module.up.Linear.forward.0", {"input.0": X, "parameters.weight": weight}, module="up", module_class="Linear"
    )
    out = X @ weight
    script.call(
        "Functional.linear.0.forward", {"input.0": X, "input.1": weight}, {"output.0": out}, module="up", parent=outer
    )
    return script


def test_a_parameter_that_differs_is_named(tmp_path: Path, keep: bool) -> None:
    weight = numbers((64, 64), seed=1)
    other = weight.copy()
    other[[3, 4]] = other[[4, 3]]
    comparison = compared(tmp_path, with_parameter(other), with_parameter(weight), keep)
    assert comparison.origin is not None
    assert (comparison.origin.kind, comparison.origin.call) == ("parameter", "up.weight")
    assert comparison.origin.mechanism == "parameter"


def test_a_parameter_perturbed_by_an_ulp_is_not(tmp_path: Path, keep: bool) -> None:
    weight = numbers((64, 64), seed=1)
    comparison = compared(tmp_path, with_parameter(rounded(weight)), with_parameter(weight), keep)
    assert comparison.verdict == "equivalent"


def softcapped(capped: bool) -> Script:
    script = Script()
    script.call("Data.Net.0.input", made={"output.0": X})
    scores = X * np.float32(3)
    script.call("Tensor.mul.0.forward", {"input.0": X}, {"output.0": scores})
    if capped:
        low = np.tanh(scores / np.float32(2))
        script.call("Torch.tanh.0.forward", {"input.0": scores}, {"output.0": low})
        scores = low * np.float32(2)
        script.call("Tensor.mul.1.forward", {"input.0": low}, {"output.0": scores})
    e = np.exp(scores - scores.max(-1, keepdims=True))
    script.call("Functional.softmax.0.forward", {"input.0": scores}, {"output.0": e / e.sum(-1, keepdims=True)})
    return script


def test_a_missing_call_between_right_inputs_and_a_wrong_one_is_the_origin(tmp_path: Path, keep: bool) -> None:
    comparison = compared(tmp_path, softcapped(False), softcapped(True), keep)
    assert comparison.origin is not None
    assert (comparison.origin.kind, comparison.origin.call) == ("missing", "Torch.tanh.0.forward")


def test_an_extra_call_is_the_origin(tmp_path: Path, keep: bool) -> None:
    comparison = compared(tmp_path, softcapped(True), softcapped(False), keep)
    assert comparison.origin is not None
    assert (comparison.origin.kind, comparison.origin.call) == ("extra", "Torch.tanh.0.forward")


def scaled(before: bool) -> Script:
    """(q · s) @ k against (q @ k) · s: another way to the same scores."""
    script = Script()
    q, k, s = numbers((16, 32)), numbers((32, 16), seed=1), np.float32(0.17677669)
    script.call("Data.Net.0.input", made={"output.0": q})
    script.call("Data.Net.1.input", made={"output.0": k})
    left = q
    if before:
        left = q * s
        script.call("Tensor.mul.0.forward", {"input.0": q}, {"output.0": left})
    scores = left @ k
    script.call("Torch.matmul.0.forward", {"input.0": left, "input.1": k}, {"output.0": scores})
    if not before:
        small = scores * s
        script.call("Tensor.mul.0.forward", {"input.0": scores}, {"output.0": small})
        scores = small
    e = np.exp(scores)
    out = e / e.sum(-1, keepdims=True)
    script.call("Functional.softmax.0.forward", {"input.0": scores}, {"output.0": out})
    script.call("Torch.matmul.1.forward", {"input.0": out, "input.1": q}, {"output.0": out @ q})
    return script


def test_calls_in_another_order_that_lead_to_the_same_are_equivalent(tmp_path: Path, keep: bool) -> None:
    assert compared(tmp_path, scaled(True), scaled(False), keep).verdict == "equivalent"


def test_operands_that_changed_places_are_the_same(tmp_path: Path, keep: bool) -> None:
    def added(first: int) -> Script:
        script = Script()
        operands = [X, numbers((16, 64), seed=2)]
        script.call("Data.Net.0.input", made={"output.0": operands[0], "output.1": operands[1]})
        given = {"input.0": operands[first], "input.1": operands[1 - first]}
        script.call("Tensor.add.0.forward", given, {"output.0": operands[0] + operands[1]})
        return script

    comparison = compared(tmp_path, added(0), added(1), keep)
    assert comparison.report.counts["origin"] == 0
    assert comparison.verdict in ("identical", "equivalent")


def test_something_that_was_not_recorded_is_pointed_at(tmp_path: Path, keep: bool) -> None:
    def warped(factor: float) -> Script:
        script = chain()
        between = script.arrays[-1] * np.float32(factor)
        script.call(
            "Module.head.Head.forward.0", {"input.0": between}, {"output.0": np.exp(-np.abs(between))}, module="head"
        )
        return script

    comparison = compared(tmp_path, warped(1.5), warped(1.0), keep)
    assert comparison.origin is not None
    assert comparison.origin.call == "Module.head.Head.forward.0"
    assert "not recorded" in comparison.origin.reason


def test_nan_born_from_right_inputs_is_an_origin(tmp_path: Path, keep: bool) -> None:
    def spoil(x: Any) -> Any:
        x = x.copy()
        x[3] = np.nan
        return x

    comparison = compared(tmp_path, chain(spoil), chain(), keep)
    assert comparison.origin is not None
    assert comparison.origin.call == "Functional.gelu.0.forward"
    assert comparison.report.to_dict()["origin"]["error"]["relative"] == "inf"


def test_what_a_noise_run_shows_at_a_call_is_explained_there(tmp_path: Path, keep: bool) -> None:
    def spoil(seed: int) -> Any:
        return lambda x: rounded(x, seed, 1e-4)

    target, reference, noise = chain(spoil(3)), chain(), chain(spoil(4))
    noise.write(tmp_path / "noise", keep)
    assert compared(tmp_path, target, reference, keep).verdict == "diverged"
    again = compare(tmp_path / "a", tmp_path / "b", noise=[tmp_path / "noise"])
    assert again.verdict == "equivalent"


def test_a_random_call_says_so(tmp_path: Path, keep: bool) -> None:
    def dropped(seed: int) -> Script:
        script = Script()
        script.call("Data.Net.0.input", made={"output.0": X})
        mask = np.random.default_rng(seed).random(X.shape) > 0.5
        script.call("Functional.dropout.0.forward", {"input.0": X}, {"output.0": (X * mask).astype(np.float32)})
        return script

    comparison = compared(tmp_path, dropped(1), dropped(2), keep)
    assert comparison.origin is not None
    assert "random numbers" in comparison.origin.reason
    assert comparison.origin.mechanism == "input"


def test_data_movement_must_be_exact(tmp_path: Path, keep: bool) -> None:
    def moved(change: float) -> Script:
        script = Script()
        script.call("Data.Net.0.input", made={"output.0": X})
        out = X.T.copy()
        out[0, 0] *= np.float32(1 + change)
        script.call("Tensor.transpose.0.forward", {"input.0": X}, {"output.0": out})
        return script

    comparison = compared(tmp_path, moved(1e-2), moved(0), keep)
    assert comparison.origin is not None
    assert comparison.origin.call == "Tensor.transpose.0.forward"


def test_a_shape_that_differs_is_a_row_with_a_reason(tmp_path: Path, keep: bool) -> None:
    def made(rows: int) -> Script:
        script = Script()
        script.call("Module.Net.forward.0", {"input.0": numbers((rows, 4))}, {"output.0": numbers((rows, 4))})
        return script

    comparison = compared(tmp_path, made(4), made(6), keep)
    reasons = comparison.pairs["reason"].to_pylist()
    assert any("shape [4, 4] against [6, 4]" in reason for reason in reasons)
    assert comparison.pairs["relative_l2"].null_count == comparison.pairs.num_rows


def test_no_common_step_is_incomparable(tmp_path: Path) -> None:
    comparison = compare(chain().write(tmp_path / "a"), chain().write(tmp_path / "b"), steps=[5])
    assert comparison.verdict == "incomparable"
    assert "step 5 is not in both runs" in comparison.report.reason


def test_steps_that_only_one_run_has_are_counted(tmp_path: Path) -> None:
    runs = (chain().write(tmp_path / "a", steps=3), chain().write(tmp_path / "b", steps=1))
    comparison = compare(*runs)
    assert comparison.verdict == "incomplete"
    assert comparison.report.reason.startswith("identical in the 1 of 3 steps that both have")
    assert comparison.report.coverage["skipped"] == {"steps that only the target has": 2}
    assert comparison.report.coverage["missing"] == ["only the target has steps 1, 2"]
    assert compare(*runs, steps=0).verdict == compare(*runs, allow_incomplete=True).verdict == "identical"


def test_the_first_step_that_is_off_has_the_origin(tmp_path: Path, keep: bool) -> None:
    comparison = compare(
        chain(lambda x: rounded(x, 3, 1e-3)).write(tmp_path / "a", keep, steps=3),
        chain().write(tmp_path / "b", keep, steps=3),
    )
    assert comparison.origin is not None
    assert comparison.origin.step == 0


def stepped(signs: Any, gradient: Any) -> Script:
    """One step of Adam on one parameter: every element moves by 0.01."""
    script = Script()
    weight, came = numbers((64,), seed=3), numbers((16, 64), seed=2)
    script.call("Data.Net.0.input", made={"output.0": X})
    forward = script.call("Torch.add.0.forward", {"input.0": X, "input.1": weight}, {"output.0": X + weight})
    script.call("Torch.add.0.backward", {"input.0": came}, {"output.1": gradient}, forward=forward)
    after = (weight + np.float32(0.01) * signs).astype(np.float32)
    given = {"parameters.w": weight, "parameters_grad.w": gradient}
    script.call("Optimizer.AdamW.step.0", given, {"output.w": after})
    return script


def test_a_step_whose_signs_are_all_rounding_s_may_go_the_other_way(tmp_path: Path, keep: bool) -> None:
    signs = np.sign(numbers((64,), seed=4))
    noise, other = (numbers((64,), seed=seed) * np.float32(1e-9) for seed in (5, 6))
    comparison = compared(tmp_path, stepped(-signs, (noise + other) / 2), stepped(signs, noise), keep)
    assert comparison.verdict == "equivalent", comparison.origin


def test_a_step_that_goes_ten_times_as_far_is_an_origin_whatever_the_gradient_s_noise(
    tmp_path: Path, keep: bool
) -> None:
    signs, gradient = np.sign(numbers((64,), seed=4)), numbers((64,), seed=5)
    comparison = compared(tmp_path, stepped(10 * signs, rounded(gradient)), stepped(signs, gradient), keep)
    assert comparison.origin is not None
    assert comparison.origin.kind == "optimizer"


def mixed_precision(dtype: Any, rest: float) -> Script:
    """linear and its backward; the gradient of the bias is nothing but what rounding leaves of large terms."""
    script = Script()
    weight, gradient = numbers((64, 64), seed=1) / np.float32(8), numbers((16, 64), seed=2)
    made = (X @ weight).astype(dtype)
    script.call("Data.Net.0.input", made={"output.0": X})
    forward = script.call("Functional.linear.0.forward", {"input.0": X, "input.1": weight}, {"output.0": made})
    came = gradient.astype(dtype)
    back = {"output.0": (gradient @ weight.T).astype(dtype), "output.2": numbers((64,), seed=6) * np.float32(rest)}
    script.call("Functional.linear.0.backward", {"input.0": came}, back, forward=forward)
    return script


def test_what_is_zero_but_for_rounding_is_larger_where_rounding_is_coarser(tmp_path: Path, keep: bool) -> None:
    coarse, fine = mixed_precision(ml_dtypes.bfloat16, 3e-3), mixed_precision(np.float32, 1e-7)
    comparison = compared(tmp_path, coarse, fine, keep)
    assert comparison.verdict == "equivalent", comparison.origin


def test_lists_of_other_lengths_are_paired_in_order_by_their_bits(tmp_path: Path) -> None:
    parts = [numbers((4,), seed=seed) for seed in range(5)]

    def norms(chosen: list[Any]) -> Script:
        script = Script()
        for number, part in enumerate(chosen):
            script.call(f"Data.Net.{number}.input", made={"output.0": part})
        given = {f"input.0.{number}": part for number, part in enumerate(chosen)}
        made = {f"output.{number}": np.linalg.norm(part).reshape(1) for number, part in enumerate(chosen)}
        script.call("Torch._foreach_norm.0.forward", given, made)
        return script

    comparison = compared(tmp_path, norms([*parts[:1], *parts[2:]]), norms(parts), True)
    rows = comparison.pairs.to_pylist()
    found = {row["target_name"]: row["reference_name"] for row in rows if "norm" in row["target_name"]}
    assert found["Torch._foreach_norm.0.forward.input.0.0"].endswith("input.0.0")
    assert all(row["bitwise_equal"] for row in rows if "norm" in row["target_name"])
