"""Runs know their settings: what differs is told before any tensor, and names the cause where it is one."""

from __future__ import annotations

from typing import Any

from numscope.compare.run_settings import SettingDifference, differences, explained
from numscope.core.report import Origin

TF32 = "torch.backends.cuda.matmul.allow_tf32"


def manifest(settings: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {"numerics": {"settings": settings, "versions": {"torch": "2.11"}, "hardware": {"cpu": "AVX2"}}, **facts}


def origin(call: str, relative: float, **more: Any) -> Origin:
    return Origin(
        call, more.pop("kind", "api"), "forward", 0, 0, "outputs differ", relative=relative, expected=4e-7, **more
    )


def test_equal_manifests_differ_in_nothing() -> None:
    one = manifest({TF32: True}, seeds={"torch": 1}, environment={"OMP_NUM_THREADS": "1"})
    assert differences(one, one) == ()


def test_settings_versions_chips_seeds_and_variables_are_told() -> None:
    one = manifest({TF32: True}, seeds={"torch": 1}, environment={"NVIDIA_TF32_OVERRIDE": "0", "RANK": "0"})
    two = manifest({TF32: False}, seeds={"torch": 2}, environment={"RANK": "1"})
    two["numerics"]["versions"] = {"torch": "2.13"}
    assert [found.name for found in differences(one, two)] == [
        TF32, "torch", "environment: NVIDIA_TF32_OVERRIDE", "seeds",
    ]  # fmt: skip


def test_a_run_that_says_nothing_of_its_settings_differs_in_none() -> None:
    assert differences({"format": "numscope.run/1"}, manifest({TF32: True})) == ()


def test_devices_are_told_without_their_numbers() -> None:
    one, two, other = ({"devices": [name]} for name in ("cuda:0 (NVIDIA H200)", "cuda:1 (NVIDIA H200)", "cpu"))
    assert differences(one, two) == ()
    assert differences(one, other) == (SettingDifference("devices", "cuda (NVIDIA H200)", "cpu"),)


def test_a_precision_that_nobody_has_set_is_no_difference_to_a_torch_without_it() -> None:
    name = "torch.backends.cuda.matmul.fp32_precision"
    assert differences(manifest({name: "none"}), manifest({})) == ()
    found = differences(manifest({name: "tf32"}), manifest({}))
    told = explained(origin("Functional.linear.0.forward", 3e-4), "float32", found)
    assert told.repair == f"{name} = 'ieee' in the target"


def test_random_draws_of_other_seeds_are_explained_by_the_seeds() -> None:
    found = differences({"seeds": {"torch": 1}}, {"seeds": {"torch": 2}})
    told = explained(origin("Functional.dropout.0.forward", 1.0, details={"random": True}), "float32", found)
    assert "the seeds differ ({'torch': 1} against {'torch': 2})" in told.reason
    assert told.repair is not None
    assert "ns.seed_all" in told.repair
    assert explained(origin("Functional.gelu.0.forward", 1.0), "float32", found).repair is None


def test_a_run_on_the_cpu_has_no_setting_of_cuda() -> None:
    assert differences(manifest({TF32: True}), manifest({})) == (SettingDifference(TF32, True, None),)


def test_a_product_that_is_off_by_tf32s_rounding_is_explained_by_the_setting() -> None:
    found = differences(manifest({TF32: True}), manifest({TF32: False}))
    told = explained(origin("Functional.linear.0.forward", 3e-4), "float32", found)
    assert told.mechanism == "precision"
    assert told.reason.endswith(f"the target multiplies in TF32 ({TF32}), the reference in float32")
    assert told.repair == f"{TF32} = False in the target"


def test_the_reference_may_be_the_coarser_one() -> None:
    found = differences(manifest({TF32: False}), manifest({TF32: True}))
    told = explained(origin("Module.blocks.0.up.Linear.forward.0", 3e-4, kind="module"), "float32", found)
    assert told.repair == f"{TF32} = False in the reference"


def test_a_setting_explains_no_other_operator_dtype_or_size_of_error() -> None:
    found = differences(manifest({TF32: True}), manifest({TF32: False}))
    for one, dtype in (
        (origin("Functional.gelu.0.forward", 3e-4), "float32"),
        (origin("Functional.conv2d.0.forward", 3e-4), "float32"),
        (origin("Functional.linear.0.forward", 3e-4), "bfloat16"),
        (origin("Functional.linear.0.forward", 0.1), "float32"),
        (origin("Functional.linear.0.forward", 3e-4, mechanism="semantic"), "float32"),
    ):
        assert explained(one, dtype, found) is one


def test_convolutions_follow_the_setting_of_cudnn() -> None:
    name = "torch.backends.cudnn.allow_tf32"
    found = differences(manifest({name: True}), manifest({}))
    told = explained(origin("Functional.conv2d.0.forward", 3e-4), "float32", found)
    assert told.details["setting"] == name
