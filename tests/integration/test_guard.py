"""The guard names the call and the line where a NaN or an infinity is born, and is silent where it is meant."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns
from tests.integration.births import Block, Struck, marked

HERE = Path(__file__).name


def check_origin(origin: dict[str, Any], call: str, where: Callable[..., Any], mark: str = "# origin") -> None:
    assert re.fullmatch(call, origin["call"]), origin
    assert Path(origin["source"]["file"]).name == HERE, origin
    assert origin["source"]["line"] == marked(where, mark), origin


def test_an_fp16_feed_forward_that_overflows(tmp_path: Path, struck: Struck) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        wide = F.relu(self.parts[0](x))
        return self.parts[1](wide)  # origin

    model = Block(work, nn.Linear(8, 16), nn.Linear(16, 8)).half()
    with torch.no_grad():
        model.parts[0].weight.fill_(30.0)
        model.parts[1].weight.fill_(30.0)
    origin = struck(model, lambda: model(torch.full((2, 8), 50.0, dtype=torch.float16)), tmp_path / "run")
    check_origin(origin, r"Functional\.linear\.1\.forward", work)
    assert origin["module"] == "parts.1"
    assert origin["details"]["posinf"] == 16
    assert origin["details"]["slot"] == "output.0"


def test_an_attention_row_that_is_masked_out_whole(tmp_path: Path, struck: Struck) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        mask[2] = False
        scores = (x @ x.T).masked_fill(~mask, float("-inf"))
        return torch.softmax(scores, -1) @ x  # origin

    origin = struck(Block(work), lambda: Block(work)(torch.randn(4, 8)), tmp_path / "run")
    check_origin(origin, r"Torch\.softmax\.0\.forward", work)
    assert origin["details"]["nan"] == 4
    assert "infinities" in origin["reason"]


@pytest.mark.parametrize(
    ("expression", "call"),
    [
        (lambda x: x / x.sub(x), r"Tensor\.(div|true_divide|__truediv__)\.0\.forward"),
        (lambda x: torch.log(x - x), r"Torch\.log\.0\.forward"),
        (lambda x: torch.exp(x * 1000), r"Torch\.exp\.0\.forward"),
        (lambda x: torch.where(x > 0, x, float("nan")), r"Torch\.where\.0\.forward"),
        (lambda x: torch.where(x > 0, x, torch.tensor(math.nan)), r"Torch\.where\.0\.forward"),
        (lambda x: x.clone().div_(0), r"Tensor\.div_\.0\.forward"),
        (lambda x: torch.complex(x, x) / 0, r"Tensor\.(div|true_divide|__truediv__)\.0\.forward"),
    ],
)
def test_one_operation(expression: Any, call: str, tmp_path: Path, struck: Struck) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.abs() + 1
        x[0] = -1
        return expression(x)

    model = Block(work)
    origin = struck(model, lambda: model(torch.randn(5)), tmp_path / "run")
    assert re.fullmatch(call, origin["call"]), origin
    assert origin["source"]["line"] == expression.__code__.co_firstlineno
    assert Path(origin["source"]["file"]).name == HERE


def test_the_derivative_of_a_root_at_zero_in_backward(tmp_path: Path, struck: Struck) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.parts[0](x)
        return torch.sqrt(x * 0).sum()  # origin

    model = Block(work, nn.Linear(4, 4))
    origin = struck(model, lambda: model(torch.randn(2, 4)).backward(), tmp_path / "run")
    check_origin(origin, r"Torch\.sqrt\.0\.backward", work)
    assert origin["phase"] == "backward"
    assert origin["details"]["slot"] == "output.0"


def test_data_that_is_not_a_number(tmp_path: Path, struck: Struck) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    batch = torch.randn(2, 4)
    batch[1, 2] = math.nan

    def job() -> None:
        model(batch)  # origin

    origin = struck(model, job, tmp_path / "run")
    check_origin(origin, r"Data\.Sequential\.0\.input", job)
    assert (origin["kind"], origin["details"]["nan"]) == ("data", 1)


def test_one_parameter_that_is_not_a_number(tmp_path: Path, struck: Struck) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.parts[0](x)
        return self.parts[1](x)  # origin

    model = Block(work, nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model.parts[1].weight[0, 0] = math.nan
    origin = struck(model, lambda: model(torch.randn(2, 4)), tmp_path / "run")
    check_origin(origin, r"Module\.parts\.1\.Linear\.forward\.0", work)
    assert origin["kind"] == "parameter"
    assert origin["details"]["slot"] == "parameters.weight"
    assert "parts.1.weight" in origin["reason"]


def test_a_parameter_that_was_made_with_nan_while_the_guard_was_on(tmp_path: Path, struck: Struck) -> None:
    def job() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        with torch.no_grad():
            model[1].weight[0, 0] = math.nan
        model(torch.randn(2, 4)).sum().backward()  # origin

    origin = struck(None, job, tmp_path / "run")
    check_origin(origin, r"Module\.1\.Linear\.forward\.0", job)
    assert (origin["kind"], origin["details"]["slot"]) == ("parameter", "parameters.weight")


class Divides(torch.optim.Optimizer):
    """An optimizer of the user's own that divides by a sum that is zero at first."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                total = parameter.grad.sub(parameter.grad).sum()
                parameter.sub_(parameter.grad.sub(parameter.grad) / total)  # origin


def test_a_division_in_the_optimizer(tmp_path: Path, struck: Struck) -> None:
    model = nn.Linear(3, 1)
    optimizer = Divides(model.parameters())

    def job() -> None:
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()

    origin = struck(model, job, tmp_path / "run")
    check_origin(origin, r"Optimizer\.Divides\.step\.0", Divides)
    assert (origin["kind"], origin["phase"]) == ("optimizer", "optimizer")
    assert origin["details"]["slot"] == "output.weight"


def test_an_optimizer_of_torchs_own_names_the_line_of_its_step(tmp_path: Path, struck: Struck) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0)

    def job() -> None:
        (model(torch.randn(2, 3)).sum() * 0).backward()
        optimizer.step()  # origin

    check_origin(struck(model, job, tmp_path / "run"), r"Optimizer\.Adam\.step\.0", job)


@pytest.mark.parametrize("deferred", [False, True])
def test_only_the_first_is_an_origin_and_what_follows_is_inherited(deferred: bool, tmp_path: Path) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.parts[0](x).exp() * 1e30 * 1e30  # origin
        return self.parts[1](x).softmax(-1)

    model = Block(work, nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = ns.guard(model, max_hits=5, action="warn", record=tmp_path / "run", deferred=deferred)
    with pytest.warns(RuntimeWarning) as told, guard:
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    assert [origin.call for origin in guard.origins] == ["Tensor.mul.1.forward"]
    assert len(told) == 1
    assert guard.origins[0].source is not None
    assert guard.origins[0].source.line == marked(work)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("level", ["module", "mix"])
def test_modules_around_an_origin_and_the_steps_after_it_inherit(level: str, deferred: bool) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.log(self.parts[0](x)).sum()

    model = nn.Sequential(Block(lambda self, x: self.parts[0](x) / 0, nn.Linear(4, 4)), Block(work, nn.Linear(4, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = ns.guard(model, max_hits=9, action="warn", record=None, level=level, deferred=deferred)
    with pytest.warns(RuntimeWarning), guard:
        for _ in range(2):
            model(torch.ones(2, 4)).backward()
            optimizer.step()
    assert [(origin.call, origin.step) for origin in guard.origins] == [
        ("Module.0.Block.forward.0" if level == "module" else "Tensor.div.0.forward", 0)
    ]


def test_max_hits_counts_origins() -> None:
    def job() -> None:
        with pytest.warns(RuntimeWarning, match=r"Torch\.log"):
            torch.log(torch.zeros(2))
        torch.exp(torch.full((2,), 1e6))
        torch.sqrt(torch.full((2,), -1.0))

    with pytest.raises(ns.NonFiniteError) as caught, ns.guard(max_hits=2, record=None):
        job()
    assert caught.value.origin["call"] == "Torch.exp.0.forward"


def test_stop_takes_the_guard_away_and_training_goes_on() -> None:
    with pytest.warns(RuntimeWarning, match="stops here"), ns.guard(action="stop", record=None) as guard:
        torch.log(torch.zeros(2))
        torch.log(torch.zeros(2))
    assert len(guard.origins) == 1


# Controls: silence ----------------------------------------------------------------------------------------------------


def masks(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Every usual way to mask attention."""
    length = x.shape[0]
    causal = torch.triu(torch.full((length, length), float("-inf")), 1)
    scores = x @ x.T
    total = torch.softmax(scores + causal, -1) @ x
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    total = total + scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ x
    total = total + torch.where(allowed, scores, float("-inf")).softmax(-1) @ x
    total = total + torch.where(allowed, scores, torch.tensor(float("-inf"))).softmax(-1) @ x
    filled = scores.clone()
    filled[~allowed] = float("-inf")
    total = total + filled.softmax(-1) @ x
    smallest = torch.zeros(length, length).masked_fill(~allowed, torch.finfo(x.dtype).min)
    total = total + torch.softmax(scores + smallest + smallest, -1) @ x
    total = total + F.scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=causal)[0]
    total = total + torch.softmax(scores + self.get_buffer("bias"), -1) @ x
    total = total + torch.log_softmax(scores + causal, -1).exp() @ x
    best = (scores + causal).logsumexp(-1)
    return self.parts[0](total) + best[:, None] + torch.full_like(x, float("inf")).minimum(x)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("level", ["mix", "module", "api"])
def test_masks_are_silent(level: str, deferred: bool, tmp_path: Path) -> None:
    model = Block(masks, nn.Linear(8, 8))
    model.register_buffer("bias", torch.triu(torch.full((6, 6), float("-inf")), 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with warnings.catch_warnings(), ns.guard(model, record=tmp_path / "run", level=level, deferred=deferred) as guard:
        warnings.simplefilter("error")
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 8, requires_grad=True)).sum().backward()
            optimizer.step()
    assert guard.origins == []
    assert not (tmp_path / "run").exists()


def test_torchs_transformer_with_masks_is_silent() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
    padding = torch.zeros(2, 5)
    padding[:, 4] = float("-inf")
    with ns.guard(layer, record=None) as guard:
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        layer(torch.randn(2, 5, 16), src_mask=mask, src_key_padding_mask=padding, is_causal=False).sum().backward()
    assert guard.origins == []


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("level", ["module", "mix"])
def test_attention_of_torchs_own_runs_under_the_guard(level: str, deferred: bool) -> None:
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    with ns.guard(layer, record=None, level=level, deferred=deferred) as guard:
        for _ in range(2):  # what the first pass made waits to be looked at while the second one runs
            mask = torch.zeros(2, 5).masked_fill(torch.ones(2, 5).tril(-1) > 0, float("-inf"))
            x = torch.randn(2, 5, 16)
            layer(x, x, x, key_padding_mask=mask)[0].sum().backward()
    assert guard.origins == []


@pytest.mark.parametrize("deferred", [False, True])
def test_the_first_steps_of_a_grad_scaler_are_skipped_steps_and_no_origin(deferred: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this torch scales losses on CUDA alone")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with ns.guard(model, record=tmp_path / "run", deferred=deferred) as guard:
        for _ in range(8):
            optimizer.zero_grad()
            loss = (model(torch.randn(4, 8)) * 300).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert guard.origins == []
    assert guard.skipped_steps
    assert guard.skipped_steps == list(range(len(guard.skipped_steps)))
    assert len(guard.skipped_steps) < 40


def test_a_nan_that_no_loss_scale_explains_is_an_origin_under_a_scaler(tmp_path: Path, struck: Struck) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.log(self.parts[0](x) * 0).sum()  # origin

    model = Block(work, nn.Linear(4, 4))
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this torch scales losses on CUDA alone")
    scaler = torch.amp.GradScaler("cpu")
    origin = struck(model, lambda: scaler.scale(model(torch.randn(2, 4))).backward(), tmp_path / "run")
    check_origin(origin, r"Torch\.log\.0\.forward", work)


def test_gradients_that_the_optimizer_takes_under_a_scale_of_ones_own_are_an_origin(
    tmp_path: Path, struck: Struck
) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(self.parts[0](x) * 0).sum()  # origin

    model = Block(work, nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def job() -> None:
        model(torch.randn(2, 4)).backward()
        optimizer.step()

    check_origin(struck(model, job, tmp_path / "run", scaled=True), r"Torch\.sqrt\.0\.backward", work)


@pytest.mark.parametrize("deferred", [False, True])
def test_sparse_complex_integers_and_empty_are_silent(deferred: bool) -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    with ns.guard(embedding, record=None, deferred=deferred) as guard:
        embedding(torch.tensor([1, 2, 2])).sum().backward()
        optimizer.step()
        matrix = torch.eye(4).to_sparse() @ torch.randn(4, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its CSR tensors beta
            torch.eye(4).to_sparse_csr() @ matrix
        torch.fft.ifft(torch.fft.fft(torch.randn(8))).real.sum()
        torch.zeros(0).sum()
        torch.arange(10) // 3
        memory = torch.empty(1000).fill_(1.0)
        memory = torch.empty_like(memory)
        memory[:] = 2.0
        torch.full((70_000,), 2.0, dtype=torch.float16).sum(dtype=torch.float32)
        torch.ones(70_000, dtype=torch.float16) * 2
    assert guard.origins == []


def test_what_the_user_allows_is_no_origin() -> None:
    with ns.guard(record=None, allow=["Torch.log"]) as guard:
        torch.softmax(torch.log(torch.tensor([0.0, 1.0])), -1)
    assert guard.origins == []
    model = Block(lambda self, x: torch.log(x * 0))
    with ns.guard({"mask": model}, record=None, allow="mask") as guard:
        model(torch.randn(3))
    assert guard.origins == []


@pytest.mark.parametrize("deferred", [False, True])
def test_what_is_overwritten_in_place_was_wrong_before_if_it_was(deferred: bool) -> None:
    """Nothing was known of it: a gradient, say, that was filled unseen."""
    values = torch.ones(4)
    values.numpy()[1] = math.nan
    with pytest.raises(ns.NonFiniteError) as caught, ns.guard(record=None, deferred=deferred):
        values.div_(2)
    assert caught.value.origin["kind"] == "data"
    assert "holds 1 NaN of 4 elements on entry" in str(caught.value)
