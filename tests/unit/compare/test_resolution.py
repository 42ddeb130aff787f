"""How small a fault would have shown, and the settings that come first, in a comparison of two runs."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from numscope.compare.comparison import Comparison, compare
from numscope.compare.resolution import Coarsest, StepResolution, part_of, sentence
from numscope.report.terminal.comparison import text
from tests.unit.compare.scripted import Script, numbers
from tests.unit.compare.test_judge import chain


def rounded(values: np.ndarray, seed: int, size: float) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(values.shape)
    return (values * (1 + size * noise)).astype(values.dtype)


@pytest.fixture(scope="module")
def equivalent(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    path = tmp_path_factory.mktemp("runs")
    return compare(chain(noise=True).write(path / "a"), chain().write(path / "b"))


def test_an_equivalent_answer_says_how_small_a_fault_would_have_shown(equivalent: Comparison) -> None:
    assert equivalent.verdict == "equivalent"
    told = equivalent.report.to_dict()["resolution"]
    assert 1e-8 < told["typical"] <= told["largest"] < 1e-3
    assert told["call"] in equivalent.calls["target_name"].to_pylist()
    assert f"a wrong result above {told['largest']:.1g} of a call's output would show" in text(equivalent)


def test_what_is_off_by_more_than_its_resolution_is_called_wrong(equivalent: Comparison, tmp_path: Path) -> None:
    pairs = {row["target_name"]: row["resolution"] for row in equivalent.pairs.to_pylist()}
    limit = pairs["Functional.gelu.0.forward.output.0"]
    assert pairs["Functional.gelu.0.forward.input.0"] is None  # of what a call makes alone
    for times, verdict in ((3.0, "diverged"), (0.3, "equivalent")):
        noisy = chain(lambda x, size=times * limit: rounded(x, 5, size), noise=True).write(tmp_path / f"a{times}")
        assert compare(noisy, chain().write(tmp_path / f"b{times}")).verdict == verdict


def test_bfloat16_is_coarse_and_the_sentence_says_where_and_what_sharpens_it(tmp_path: Path) -> None:
    def script(noise: float) -> Script:
        made, weight = Script(), numbers((64, 64), seed=1)
        x = numbers((32, 64))
        made.call("Data.Net.0.input", made={"output.0": x})
        for layer in range(2):
            dtype = ml_dtypes.bfloat16 if layer else np.float32
            x, w = x.astype(dtype), weight.astype(dtype)
            y = x.astype(np.float32) @ w.astype(np.float32) / 8
            y = (rounded(y, layer, noise) if noise else y).astype(dtype)
            made.call(
                f"Functional.linear.{layer}.forward", {"input.0": x, "input.1": w}, {"output.0": y}, module=f"b.{layer}"
            )
            x = y
        return made

    found = compare(script(1e-7).write(tmp_path / "a"), script(0.0).write(tmp_path / "b"))
    assert found.verdict == "equivalent", found.report.reason
    told = found.report.resolution
    assert told is not None
    assert told["largest"] > 1e-3
    assert "in b.1 only above" in told["sentence"]
    assert "(bfloat16" in told["sentence"]
    assert "numscope bisect" in told["sentence"]


def test_parts_of_a_model_are_named_by_their_first_number_and_joined() -> None:
    assert [part_of(path) for path in ("", "head", "blocks.9.mlp.up", "encoder.layers.3")] == [
        "", "head", "blocks.9", "encoder.layers.3",
    ]  # fmt: skip
    parts = [Coarsest(f"blocks.{n}", "forward", 0.02, "F.gelu", "bfloat16", 0.01) for n in (9, 10, 11)]
    parts.append(Coarsest("embed", "forward", 4e-6, "F.embedding", "bfloat16", 0.0))
    told = sentence(StepResolution(((4e-6, 1), (0.02, 1)), 4e-6, 0, tuple(parts)))
    assert told.startswith("a wrong result above 4e-06 of a call's output would show; in blocks.9–11 only above 0.02")


def test_calls_whose_rounding_may_be_as_large_as_their_results_are_said_to_be_unjudged() -> None:
    told = sentence(StepResolution(((1e-6, 1),), 1e-6, 2, (Coarsest("", "forward", 1e-6, "F.gelu", "float32", 0.0),)))
    assert told.endswith("2 calls cannot be judged: rounding may be as large as their results")


def test_two_tensors_of_other_shapes_that_are_not_alike_are_no_pair(tmp_path: Path) -> None:
    def script(shape: tuple[int, ...], seed: int) -> Script:
        made, weight, x = Script(), numbers((64, 64), seed=1), numbers((32, 64))
        made.call("Data.Net.0.input", made={"output.0": x})
        made.call("Tensor.reshape.0.forward", {"input.0": x}, {"output.0": numbers(shape, seed=seed)})
        y = x @ weight
        made.call("Functional.linear.0.forward", {"input.0": x, "input.1": weight}, {"output.0": y})
        return made

    found = compare(script((4, 2, 2, 8, 16), 3).write(tmp_path / "a"), script((4, 4, 8, 16), 4).write(tmp_path / "b"))
    rows = [row for row in found.pairs.to_pylist() if row["target_name"] == "Tensor.reshape.0.forward.output.0"]
    assert rows
    for row in rows:
        assert row["verdict"] != "equivalent"
        assert row["verdict"] or row["relative_l2"] is None


def test_a_setting_that_explains_the_origin_is_named_first(tmp_path: Path) -> None:
    name = "torch.backends.cuda.matmul.allow_tf32"
    runs = {}
    for run, tf32 in (("a", True), ("b", False)):
        made, weight, x = Script(), numbers((64, 64), seed=1), numbers((32, 64))
        made.call("Data.Net.0.input", made={"output.0": x})
        y = rounded(x @ weight, 2, 3e-4) if tf32 else x @ weight
        made.call("Functional.linear.0.forward", {"input.0": x, "input.1": weight}, {"output.0": y})
        numerics = {"settings": {name: tf32}, "versions": {"torch": "2.11"}}
        runs[run] = made.write(tmp_path / run, manifest={"numerics": numerics})
    found = compare(runs["a"], runs["b"])
    assert found.verdict == "diverged"
    assert found.origin is not None
    assert found.origin.mechanism == "precision"
    assert f"the target multiplies in TF32 ({name}), the reference in float32" in found.origin.reason
    assert found.origin.repair == f"{name} = False in the target"
    assert found.report.to_dict()["settings"] == [{"name": name, "target": True, "reference": False}]
    assert text(found).splitlines()[1].split() == ["settings", f"{name}:", "True", "against", "False"]
