"""The saving hook, as its users call it, on real Paddle."""

from __future__ import annotations

import csv
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    paddle = pytest.importorskip("paddle")

import torch

import numscope as ns
from numscope.compat.saving_hook import register_hook, register_saving_hook
from numscope.compat.saving_hook.hook_result_checker import main as checker
from numscope.compat.saving_hook.plot_rst import main as plotter

F = paddle.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")


class Llama(paddle.nn.Layer):
    """Stands for the document's LLama13B."""

    def __init__(self) -> None:
        super().__init__()
        self.up = paddle.nn.Linear(4, 8)
        self.norm = paddle.nn.LayerNorm(8)
        self.down = paddle.nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.down(F.relu(self.norm(self.up(x))))


def saved(path: str, seed: int = 0, steps: int = 2, noise: float = 0.0, **options: Any) -> Any:
    paddle.seed(seed)
    model = Llama()
    model = register_saving_hook(model, path=path, target_class_names=["Linear", "LayerNorm"], **options)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        model(paddle.to_tensor((rng.standard_normal((2, 4)) + noise).astype("float32"))).sum().backward()
    return model


def test_the_saving_hook_writes_the_documented_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = saved("./tmp_tensors", max_saved_tensors=100, max_saved_grads=200)
    tensors = sorted((tmp_path / "tmp_tensors/tensors/rank_0").iterdir(), key=lambda p: int(p.name.split("_")[2]))
    pattern = r"tensor_idx_(\d+)_layer_class_(Linear|LayerNorm)_layer_name_(\w+)_micro_step_(\d)\.npy"
    matches = [re.fullmatch(pattern, file.name) for file in tensors]
    assert [int(m[1]) for m in matches if m] == list(range(6))
    assert [m[4] for m in matches if m] == ["0"] * 3 + ["1"] * 3
    assert matches[0][3] == model.up.full_name()
    grads = list((tmp_path / "tmp_tensors/grads/rank_0").iterdir())
    assert len(grads) == 12
    assert all(re.fullmatch(r"grad_idx_\d+_of_param_name_[\w.]+_micro_step_\d\.npy", file.name) for file in grads)
    # The gradient of the second micro-step is its own, not the sum.
    name = model.down.bias.name
    second = next(file for file in grads if name in file.name and file.name.endswith("step_1.npy"))
    np.testing.assert_array_equal(np.load(second), np.full(4, 2.0))


@pytest.mark.parametrize(("limit", "count"), [(2, 2), (0, 6), (-1, 6), (50, 6)])
def test_the_caps_hold(limit: int, count: int, tmp_path: Path) -> None:
    saved(str(tmp_path / "t"), max_saved_tensors=limit, max_saved_grads=limit)
    assert len(list((tmp_path / "t/tensors/rank_0").iterdir())) == count


@pytest.mark.parametrize(("limit", "count"), [(1, 2), (0, 6), (2, 4)])
def test_the_caps_of_later_releases_hold_in_each_micro_step(limit: int, count: int, tmp_path: Path) -> None:
    saved(str(tmp_path / "t"), max_saved_tensors=1, max_saved_tensors_per_step=limit, max_saved_grads_per_step=limit)
    assert len(list((tmp_path / "t/tensors/rank_0").iterdir())) == count


def test_the_checker_writes_the_eleven_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    with paddle.utils.unique_name.guard():
        saved(str(first))
    with paddle.utils.unique_name.guard():
        saved(str(second), noise=0.1, steps=3)
    for _ in range(2):  # a second time with compare_rst already there
        assert checker(["--pathA", str(first), "--pathB", str(second)]) == 0
    assert "only in pathB" in capsys.readouterr().out
    for kind in ("tensors", "grads"):
        with (first / kind / "compare_rst" / "rank_0_rst.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert ", ".join(rows[0]) == (
            "tensor_name, cosine similarity, meanA, meanB, meanA - meanB, stdA, stdB, stdA - stdB, varA, varB, "
            "varA - varB"
        )
    row = rows[0]
    a, b = (
        np.load(side / "grads/rank_0" / f"{row['tensor_name']}.npy").astype(np.float64).ravel()
        for side in (first, second)
    )
    assert float(row["cosine similarity"]) == pytest.approx(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))
    assert float(row["cosine similarity"]) <= 1.0
    assert float(row["meanA"]) == pytest.approx(a.mean())
    assert float(row["stdB"]) == pytest.approx(b.std())
    assert float(row["varA - varB"]) == pytest.approx(a.var() - b.var())
    csv_file = first / "tensors/compare_rst/rank_0_rst.csv"
    assert plotter(["--rst_path", str(csv_file), "--target_name", "Linear", "--values_per_step", "2"]) == 0
    assert (csv_file.parent / "rank_0_rst_Linear.png").read_bytes()[:4] == b"\x89PNG"
    (csv_file.parent / "rank_0_rst_Linear.png").unlink()
    assert plotter(["--rst_path", str(csv_file), "--target_name", "Linear"]) == 0  # the names say the micro steps
    assert (csv_file.parent / "rank_0_rst_Linear.png").read_bytes()[:4] == b"\x89PNG"
    assert plotter(["--rst_path", str(csv_file), "--target_name", "Nothing", "--values_per_step", "2"]) == 2
    assert checker(["--pathA", "nowhere", "--pathB", str(second)]) == 2


def test_the_saving_hook_on_bf16_tuples_and_torch(tmp_path: Path) -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0].to(torch.bfloat16)

    model = register_hook(Two(), path=str(tmp_path / "t"), target_class_names="LSTM", max_saved_tensors=-1)
    model(torch.randn(4, 1, 3)).float().sum().backward()
    assert len(list((tmp_path / "t/tensors/rank_0").iterdir())) == 3
    assert len(list((tmp_path / "t/grads/rank_0").iterdir())) == 4

    class Cast(paddle.nn.Layer):
        def forward(self, x: Any) -> Any:
            return x.astype("bfloat16")

    register_hook(Cast(), path=str(tmp_path / "p"))(paddle.ones([1, 2]))
    (file,) = (tmp_path / "p/tensors/rank_0").iterdir()
    assert np.load(file).dtype == np.float32
    with pytest.warns(UserWarning, match="Two has layers inside, and only leaves are saved: name LSTM"):
        register_hook(Two(), path=str(tmp_path / "c"), target_class_names="Two")
    with pytest.warns(UserWarning, match="Sequential has layers inside, and only leaves are saved: name Linear, ReLU"):
        register_hook(
            paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.ReLU()), target_class_names=["Sequential", "Linear"]
        )
    with pytest.raises(ns.SettingsError, match="matches no leaf layer"):
        register_hook(paddle.nn.Linear(2, 2), target_class_names=["Conv2D"])
    with pytest.raises(ns.SettingsError, match=r"paddle\.nn\.Layer"):
        register_hook("model")


def test_its_folders_are_imported(tmp_path: Path) -> None:
    from numscope.__main__ import main

    model = saved(str(tmp_path / "t"))
    assert main(["import", str(tmp_path / "t"), str(tmp_path / "run")]) == 0
    run = ns.open_run(tmp_path / "run")
    assert run.steps == [0, 1]
    name = model.up.full_name()
    assert f"Module.{name}.Linear.forward.0" in run.calls["name"].to_pylist()
