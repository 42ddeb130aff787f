"""PaddlePaddle on the CPU: capture of layers and functions, bit-neutral, with torch's fingerprints; the saving hook."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
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


class Net(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(8, 4)
        self.norm = paddle.nn.BatchNorm1D(4)
        self.second = paddle.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        hidden = self.norm(self.first(x))
        return F.gelu(self.second(hidden), approximate=True) + hidden


def train(steps: int = 2, path: Path | None = None, **settings: Any) -> dict[str, Any]:
    paddle.seed(0)
    rng = np.random.default_rng(0)
    net = Net()
    optimizer = paddle.optimizer.AdamW(0.1, parameters=net.parameters())
    cap = ns.capture(path, net, on_error="raise", **settings) if path else None
    losses, gradients, inputs = [], [], []
    if cap:
        cap.start()
    for _ in range(steps):
        inputs.append(rng.standard_normal((5, 8)).astype("float32"))
        loss = (net(paddle.to_tensor(inputs[-1])) ** 2).mean()
        loss.backward()
        losses.append(loss.numpy())
        gradients.append(net.first.weight.grad.numpy().copy())
        optimizer.step()
        optimizer.clear_grad()
        if cap:
            cap.step()
    if cap:
        cap.close()
    return {
        "losses": losses, "gradients": gradients, "inputs": inputs, "weights": net.second.weight.numpy(),
        "random": paddle.rand([3]).numpy(), "net": net,
    }  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    path = tmp_path_factory.mktemp("paddle") / "run"
    facts = train(path=path, keep="tensors")
    return ns.open_run(path), facts


@pytest.mark.parametrize("level", ["module", "api", "mix"])
def test_capture_changes_nothing(level: str, tmp_path: Path) -> None:
    plain, seen = train(), train(path=tmp_path / "run", level=level)
    for key in ("losses", "gradients"):
        for a, b in zip(plain[key], seen[key]):
            assert a.tobytes() == b.tobytes()
    assert plain["weights"].tobytes() == seen["weights"].tobytes()
    assert plain["random"].tobytes() == seen["random"].tobytes()


class Picture(paddle.nn.Layer):
    """Convolution, norm, pooling, and operators in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = paddle.nn.Conv2D(3, 4, 3)
        self.norm = paddle.nn.BatchNorm2D(4)
        self.pool = paddle.nn.MaxPool2D(2)
        self.head = paddle.nn.Linear(36, 5)

    def forward(self, x: Any) -> Any:
        y = paddle.flatten(self.pool(F.relu_(self.norm(self.conv(x)))), 1)
        return self.head((y * 2).add_(paddle.ones([1])))


class Text(paddle.nn.Layer):
    """Embedding, attention with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = paddle.nn.Embedding(11, 8)
        self.encoder = paddle.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1)

    def forward(self, x: Any) -> Any:
        return self.encoder(self.embedding(x))


class Recurrent(paddle.nn.Layer):
    """A layer with several outputs, indexing."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = paddle.nn.LSTM(4, 6)

    def forward(self, x: Any) -> Any:
        outputs, (hidden, _) = self.lstm(x)
        return outputs[:, -1] + hidden[0] * 0.5


class Recomputed(paddle.nn.Layer):
    """A part that runs again inside backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(4, 4)
        self.second = paddle.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        from paddle.distributed.fleet.utils import recompute

        return recompute(lambda v: F.gelu(self.second(v)), self.first(x))


def compiled() -> Any:
    return paddle.jit.to_static(Net())


def numbers(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype("float32")


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (Picture, numbers(2, 3, 8, 8)),
        (Text, np.random.default_rng(1).integers(0, 11, (2, 5))),
        (Recurrent, numbers(2, 5, 4)),
        (Recomputed, numbers(3, 4)),
        (compiled, numbers(5, 8)),
    ],
    ids=["picture", "text", "recurrent", "recomputed", "compiled"],
)
def test_no_kind_of_model_is_changed(make: Any, data: Any, tmp_path: Path) -> None:
    seen = []
    for path in (None, tmp_path / "run"):
        paddle.seed(3)
        model = make()
        cap = ns.capture(path, model, on_error="raise") if path else None
        if cap:
            cap.start()
        (model(paddle.to_tensor(data)) ** 2).mean().backward()
        if cap:
            cap.close()
        seen.append(
            [parameter.grad.numpy().tobytes() for parameter in model.parameters() if parameter.grad is not None]
        )
    assert seen[0] == seen[1]
    calls = ns.open_run(tmp_path / "run").calls.to_pylist()
    again = [call["name"] for call in calls if call["recompute"]]
    assert bool(again) is (make is Recomputed)


def test_everything_is_undone_at_stop(tmp_path: Path) -> None:
    before = (F.gelu, paddle.exp, paddle.Tensor.__add__, paddle.nn.Layer.__call__, paddle.optimizer.Adam.step)
    train(path=tmp_path / "run", steps=1)
    assert before == (F.gelu, paddle.exp, paddle.Tensor.__add__, paddle.nn.Layer.__call__, paddle.optimizer.Adam.step)


def test_every_step_has_the_same_calls_each_once(tmp_path: Path) -> None:
    train(path=tmp_path / "run", steps=3)
    calls = ns.open_run(tmp_path / "run").calls.to_pylist()
    steps = [[call["name"] for call in calls if call["step"] == step] for step in range(3)]
    assert steps[0] == steps[1] == steps[2]
    assert len(set(steps[0])) == len(steps[0])


def test_a_weight_has_its_gradient_of_each_micro_batch(tmp_path: Path) -> None:
    net = paddle.nn.Linear(4, 2)
    alone = []
    with ns.capture(tmp_path / "run", net, keep="tensors", on_error="raise"):
        for scale in (1.0, 3.0):
            loss = (net(paddle.full([3, 4], scale)) ** 2).mean()
            alone.append(paddle.grad(loss, net.weight, retain_graph=True)[0].numpy())
            loss.backward()
    run = ns.open_run(tmp_path / "run")
    for number, gradient in enumerate(alone):
        assert (run.tensor(f"Functional.linear.{number}.backward.output.1") == gradient).all()


def test_an_unchanged_script_has_its_calls_in_the_step_they_belong_to(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import paddle\n"
        "net = paddle.nn.Linear(4, 2)\n"
        "optimizer = paddle.optimizer.SGD(parameters=net.parameters())\n"
        "for _ in range(3):\n"
        "    net(paddle.randn([3, 4])).mean().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.clear_grad()\n"
    )
    command = [sys.executable, "-m", "numscope", "run", "--out", "run", "--", "train.py"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    calls = ns.open_run(tmp_path / "run").calls.to_pylist()
    for step in range(3):
        here = [call for call in calls if call["step"] == step]
        assert [call["order"] for call in here] == list(range(len(here)))
        assert here[0]["name"] == "Paddle.randn.0.forward"
        assert here[-1]["name"] == "Optimizer.SGD.step.0"


def test_calls_have_the_names_and_places_of_torch(kept: Any) -> None:
    run, _ = kept
    calls = {call["name"]: call for call in run.calls.to_pylist() if call["step"] == 0}
    for name in (
        "Data.Net.0.input", "Module.Net.forward.0", "Module.first.Linear.forward.0", "Functional.linear.0.forward",
        "Functional.batch_norm.0.forward", "Functional.gelu.0.forward", "Tensor.add.0.forward", "Tensor.mean.0.backward",
        "Functional.gelu.0.backward", "Module.norm.BatchNorm1D.backward.0", "Optimizer.AdamW.step.0",
    ):  # fmt: skip
        assert name in calls
    gelu = calls["Functional.gelu.0.forward"]
    assert json.loads(gelu["arguments"]) == {"kwargs": {"approximate": True}}
    assert gelu["source_file"].endswith("test_paddle.py")
    assert "F.gelu" in gelu["source_code"]
    assert calls["Functional.linear.0.forward"]["parent"] == calls["Module.first.Linear.forward.0"]["order"]
    assert calls["Functional.gelu.0.backward"]["forward"] == gelu["order"]
    assert run.manifest["framework"] == "paddle"


def test_values_are_what_the_job_had(kept: Any) -> None:
    run, facts = kept
    for step in (0, 1):
        x = run.tensor("Functional.linear.0.forward.input.0", step=step)
        np.testing.assert_array_equal(x, facts["inputs"][step])
        gradient = run.tensor("Module.first.Linear.backward.0.parameters_grad.weight", step=step)
        np.testing.assert_array_equal(gradient, facts["gradients"][step])
    weights = run.tensor("Optimizer.AdamW.step.0.output.second.weight", step=1)
    np.testing.assert_array_equal(weights, facts["weights"])
    incoming = run.tensor("Functional.linear.1.backward.input.0", step=0)
    hidden = run.tensor("Functional.linear.1.forward.input.0", step=0)
    np.testing.assert_allclose(
        run.tensor("Functional.linear.1.backward.output.1", step=0), hidden.T @ incoming, rtol=1e-4, atol=1e-6
    )


def test_a_gradient_that_paddle_only_gives_in_sum_is_said_to_be_unknown(kept: Any) -> None:
    run, _ = kept
    rows = {row["name"]: row for row in run.tensors.to_pylist() if row["step"] == 0}
    assert "2 uses" in rows["Tensor.add.0.backward.output.1"]["note"]
    assert rows["Tensor.add.0.backward.output.1"]["hash"] is None
    assert rows["Tensor.add.0.backward.output.0"]["hash"] is not None


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "bool", "uint8"])
def test_fingerprints_are_torchs_for_equal_content(dtype: str, tmp_path: Path) -> None:
    values = np.random.default_rng(3).standard_normal((7, 33)) * 3
    ours = torch.tensor(values).to(getattr(torch, dtype))
    theirs = paddle.to_tensor(values).astype(dtype)
    hashes, sketches = [], []
    for path, tensor in ((tmp_path / "torch", ours), (tmp_path / "paddle", theirs)):
        model = torch.nn.Identity() if path.name == "torch" else paddle.nn.Identity()
        with ns.capture(path, model, on_error="raise", keep="tensors") as cap:
            cap.save("x", tensor)
        row = ns.open_run(path).tensors.to_pylist()[0]
        assert row["dtype"] == dtype
        hashes.append((row["hash"], row["min"], row["max"], row["mean"], row["l2"], row["zero"]))
        sketches.append(row["sketch"])
        assert ns.open_run(path).tensor("Save.x.0.forward.output.0").dtype.name == dtype
    assert hashes[0][0] == hashes[1][0]
    assert hashes[0][1:] == pytest.approx(hashes[1][1:], rel=1e-6)
    np.testing.assert_allclose(sketches[0], sketches[1], rtol=1e-5, atol=1e-4)


def test_functions_that_were_imported_by_name_are_seen(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import warnings; warnings.simplefilter('ignore')\n"
        "import paddle\n"
        "from paddle.nn.functional import relu\n"
        "paddle.seed(1)\n"
        "net = paddle.nn.Linear(3, 2)\n"
        "opt = paddle.optimizer.SGD(0.1, parameters=net.parameters())\n"
        "for step in range(2):\n"
        "    loss = relu(net(paddle.ones([4, 3]))).sum()\n"
        "    loss.backward()\n"
        "    opt.step()\n"
        "    opt.clear_grad()\n"
    )
    environment = {**os.environ, "PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}
    out = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "numscope", "run", "--out", str(out), "--", str(script)],
        capture_output=True, text=True, env=environment, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = ns.open_run(out)
    assert run.ranks == [1]
    assert run.steps == [0, 1]
    names = set(run.calls["name"].to_pylist())
    assert {
        "Module.Linear.forward.0",
        "Functional.linear.0.forward",
        "Functional.relu.0.forward",
        "Optimizer.SGD.step.0",
    } <= names
    assert "Tensor.sum.0.backward" in names


def test_an_unknown_model_says_what_can_be_captured(tmp_path: Path) -> None:
    with pytest.raises(ns.SettingsError, match="paddle"):
        ns.capture(tmp_path / "run", object())
    with pytest.raises(ns.SettingsError, match="aten"):
        ns.capture(tmp_path / "run", Net(), level="aten")


# The saving hook ----------------------------------------------------------------------------------------------------


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
        assert list(rows[0]) == [
            "tensor_name", "cosine similarity", "meanA", "meanB", "meanA - meanB", "stdA", "stdB", "stdA - stdB", "varA",
            "varB", "varA - varB",
        ]  # fmt: skip
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
