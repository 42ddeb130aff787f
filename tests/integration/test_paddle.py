"""PaddlePaddle on the CPU: capture of layers and functions, bit-neutral, with torch's fingerprints; the saving hook."""

from __future__ import annotations

import json
import os
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
from numscope.check.checking import check

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
        "losses": losses,
        "gradients": gradients,
        "inputs": inputs,
        "weights": net.second.weight.numpy(),
        "random": paddle.rand([3]).numpy(),
        "net": net,
    }


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


@pytest.mark.parametrize(
    ("settings", "told"), [(["--guard"], "the guard watches torch alone"), (["--level", "aten"], "is torch's")]
)
def test_what_paddle_does_not_have_is_one_line(tmp_path: Path, settings: list[str], told: str) -> None:
    (tmp_path / "train.py").write_text("import paddle\nprint('ran')\n")
    command = [sys.executable, "-m", "numscope", "run", *settings, "--out", "run", "--", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert told in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert "ran" not in done.stdout


def test_a_parameter_that_is_not_finite_is_named_by_check(tmp_path: Path) -> None:
    net = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.Linear(3, 2))
    weight = net[1].weight.numpy()
    weight[0, 0] = np.inf
    net[1].weight.set_value(weight)
    with ns.capture(tmp_path / "run", net, on_error="raise"):
        net(paddle.ones([2, 4])).mean().backward()
    found = check(ns.open_run(tmp_path / "run")).origin
    assert (found.kind, found.module) == ("parameter", "1")
    assert "the parameter weight of 1 holds 1 +inf of 6 elements" in found.reason


def test_calls_have_the_names_and_places_of_torch(kept: Any) -> None:
    run, _ = kept
    calls = {call["name"]: call for call in run.calls.to_pylist() if call["step"] == 0}
    for name in """
        Data.Net.0.input Module.Net.forward.0 Module.first.Linear.forward.0 Functional.linear.0.forward
        Functional.batch_norm.0.forward Functional.gelu.0.forward Tensor.add.0.forward Tensor.mean.0.backward
        Functional.gelu.0.backward Module.norm.BatchNorm1D.backward.0 Optimizer.AdamW.step.0
        """.split():
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
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
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
