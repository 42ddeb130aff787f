"""Training loops as users write them, twice: what differs by rounding is no origin, and what is wrong is named at its call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import numscope as ns

WIDTH, HEADS = 16, 2


class Attention(nn.Module):
    """Query, key and value apart, with biases: the gradient of the key's is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.fused = False

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        size = (*x.shape[:2], HEADS, -1)
        q, k, v = (part(x).view(size).transpose(1, 2) for part in (self.query, self.key, self.value))
        turned = turn.unsqueeze(1)
        q, k = q * turned, k * turned
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = torch.softmax(q @ k.transpose(-1, -2) * (WIDTH / HEADS) ** -0.5, -1)
            mixed = weights.type(v.dtype) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention, self.second = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x), turn)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Model(nn.Module):
    """A small transformer; all layers are given the same turning factors, as rotary ones are."""

    def __init__(self, fused: bool = False, recomputes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.blocks = nn.Linear(6, WIDTH), nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head, self.recomputes = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5), recomputes
        for block in self.blocks:
            block.attention.fused = fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turn = torch.cos(torch.arange(x.shape[1] * WIDTH / HEADS, device=x.device).view(1, x.shape[1], -1)).to(x.dtype)
        h = self.embed(x)
        for block in self.blocks:
            h = checkpoint(block, h, turn, use_reentrant=False) if self.recomputes else block(h, turn)
        return self.head(self.norm(h).mean(1))


Job = Callable[[Path], Path]


def train(
    path: Path,
    model: nn.Module,
    *,
    steps: int = 3,
    clip: bool = True,
    autocast: bool = False,
    parts: int = 1,
    optimizer: Any = None,
    keep: str = "tensors",
    clipped: Any = None,
    level: str = "mix",
) -> Path:
    torch.set_num_threads(1)
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    with ns.capture(path, model, keep=keep, level=level) as capture:
        for _ in range(steps):
            x, y = torch.randn(4, 7, 6, generator=generator), torch.randint(5, (4,), generator=generator)
            optimizer.zero_grad()
            for part, labels in zip(x.chunk(parts), y.chunk(parts)):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = F.cross_entropy(model(part), labels)
                (loss / parts).backward()
            if clip:
                nn.utils.clip_grad_norm_(clipped or model.parameters(), 0.1)
            optimizer.step()
            capture.step()
    return path


def adamw(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, **settings})


@pytest.mark.parametrize(("keep", "level"), [("tensors", "mix"), ("stats", "mix"), ("stats", "aten")])
@pytest.mark.parametrize("what", ["fused attention", "autocast", "halves", "quarters", "fused optimizer"])
def test_the_same_training_by_other_kernels_is_equivalent(what: str, keep: str, level: str, tmp_path: Path) -> None:
    model = Model(fused=what == "fused attention")
    options: dict[str, Any] = {"parts": {"halves": 2, "quarters": 4}.get(what, 1), "autocast": what == "autocast"}
    if what == "fused optimizer":
        options["optimizer"] = adamw(model, fused=True)
    target = train(tmp_path / "a", model, keep=keep, level=level, **options)
    comparison = ns.compare(target, train(tmp_path / "b", Model(), keep=keep, level=level))
    assert comparison.verdict == "equivalent", comparison.origin.reason


def test_a_checkpoint_s_second_executions_follow_their_first_where_layers_share_an_input(tmp_path: Path) -> None:
    target = train(tmp_path / "a", Model(recomputes=True), steps=1)
    comparison = ns.compare(target, train(tmp_path / "b", Model(), steps=1))
    assert comparison.verdict in ("identical", "equivalent"), comparison.origin.reason
    calls = ns.open_run(target).calls.to_pylist()
    again = [call for call in calls if call["recompute"]]
    by_order = {call["order"]: call for call in calls}
    assert again
    assert all(by_order[call["forward"]]["module"] == call["module"] for call in again)


class Experts(nn.Module):
    """Sends each row to one of three layers; how many go to each is counted beside the graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router, self.layers = nn.Linear(6, 3), nn.ModuleList(nn.Linear(6, 5) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.mean(1)
        weights, choice = torch.softmax(self.router(x), -1).max(-1)
        order = torch.argsort(choice, stable=True)
        ends = torch.bincount(choice, minlength=3).cumsum(0)
        parts = torch.tensor_split(x[order], ends[:-1].cpu())
        mixed = torch.cat([layer(part) for layer, part in zip(self.layers, parts)])
        return torch.zeros_like(mixed).index_add(0, order, mixed) * weights[:, None]


def test_a_batch_in_parts_is_equivalent_though_counts_beside_the_graph_differ(tmp_path: Path) -> None:
    comparison = ns.compare(train(tmp_path / "a", Experts(), parts=2), train(tmp_path / "b", Experts()))
    assert comparison.verdict == "equivalent", comparison.origin.reason


def test_a_model_and_its_data_cast_to_another_precision_are_equivalent(tmp_path: Path) -> None:
    def answer(path: Path, dtype: torch.dtype) -> Path:
        torch.manual_seed(1)
        data = torch.randn(2, 7, 6)
        with ns.capture(path), torch.no_grad():
            Model().to(dtype)(data.bfloat16() if dtype == torch.bfloat16 else data)
        return path

    comparison = ns.compare(answer(tmp_path / "a", torch.bfloat16), answer(tmp_path / "b", torch.float32))
    assert comparison.verdict == "equivalent", comparison.origin.reason


def test_a_parameter_without_gradient_is_named_where_its_gradient_is_made_though_gradients_are_clipped(
    tmp_path: Path,
) -> None:
    model = Model()
    model.blocks[1].second.weight.requires_grad_(False)
    target, reference = train(tmp_path / "a", model, steps=1), train(tmp_path / "b", Model(), steps=1)
    report = ns.diagnose(target, reference)
    assert report.origin.module == "blocks.1.second"
    assert report.origin.phase == "backward"
    assert (
        report.origin.repair == "equal to the reference with a gradient for blocks.1.second.weight (now it is frozen)"
    )


def test_a_norm_over_some_of_the_gradients_is_told_by_how_many_it_is_given(tmp_path: Path) -> None:
    model = Model()
    target = train(tmp_path / "a", model, steps=1, clipped=list(model.blocks.parameters()))
    comparison = ns.compare(target, train(tmp_path / "b", Model(), steps=1))
    assert "norm" in comparison.origin.call
    assert "it is given 32 tensors as input.0, its counterpart 38" in comparison.origin.reason


def test_other_betas_are_named_though_rounding_is_in_all_gradients(tmp_path: Path) -> None:
    model = Model(fused=True)
    target = train(tmp_path / "a", model, optimizer=adamw(model, betas=(0.9, 0.95)))
    comparison = ns.compare(target, train(tmp_path / "b", Model()))
    assert comparison.origin.kind == "optimizer"
    assert "0.95 against 0.999" in comparison.origin.reason
    assert comparison.origin.relative > comparison.origin.expected


def test_settings_are_repaired_though_rounding_parts_what_the_two_saw(tmp_path: Path) -> None:
    model = Model(fused=True)
    target = train(tmp_path / "a", model, steps=1, optimizer=adamw(model, weight_decay=0.5))
    report = ns.diagnose(target, train(tmp_path / "b", Model(), steps=1))
    assert report.origin.repair == ("equal to the reference with weight_decay=0.01 (now 0.5) in Optimizer.AdamW.step.0")


def test_weights_rounded_after_a_step_are_named_by_the_call_that_rounds_them(tmp_path: Path) -> None:
    def run(path: Path, rounds: bool) -> Path:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ns.capture(path, model, keep="tensors") as capture:
            for number in range(2):
                if number and rounds:
                    with torch.no_grad():
                        model.head.weight.copy_(model.head.weight.bfloat16().float())
                optimizer.zero_grad()
                model(torch.ones(2, 7, 6)).sum().backward()
                optimizer.step()
                capture.step()
        return path

    comparison = ns.compare(run(tmp_path / "a", True), run(tmp_path / "b", False))
    assert (comparison.origin.call, comparison.origin.kind) == ("Tensor.bfloat16.0.forward", "extra")


def test_another_form_is_named_by_its_gradient_where_bf16_hides_it_in_forward(tmp_path: Path) -> None:
    def run(path: Path, **form: str) -> Path:
        torch.manual_seed(0)
        layer, x = nn.Linear(32, 32, dtype=torch.bfloat16), 0.3 * torch.randn(64, 32, dtype=torch.bfloat16)
        with ns.capture(path, layer, keep="tensors"):
            F.gelu(layer(x), **form).sum().backward()
        return path

    comparison = ns.compare(run(tmp_path / "a", approximate="tanh"), run(tmp_path / "b"))
    assert comparison.verdict == "diverged"
    assert comparison.origin.call.startswith("Functional.gelu.0")
    assert "approximate" in comparison.origin.reason


def test_a_wrong_scale_of_a_fused_attention_is_named_there_and_not_at_a_mask_that_served_before(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor, scales: tuple[float, float], fused: bool) -> torch.Tensor:
            mask = None if fused else torch.zeros(7, 7).masked_fill(torch.ones(7, 7).triu(1) > 0, -1e9) + 0.0
            for scale in scales:
                if fused:
                    x = x + F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=scale)
                else:
                    x = x + torch.softmax(x @ x.transpose(-1, -2) * scale + mask, -1) @ x
            return x.square().mean()

    def run(path: Path, scales: tuple[float, float], fused: bool) -> Path:
        torch.manual_seed(0)
        model, x = Twice(), torch.randn(2, 7, 16)
        with ns.capture(path, model, keep="tensors"):
            model(x, scales, fused)
        return path

    comparison = ns.compare(run(tmp_path / "a", (0.25, 0.251), True), run(tmp_path / "b", (0.25, 0.25), False))
    assert comparison.origin.call == "Functional.scaled_dot_product_attention.1.forward"
    agreeing = ns.compare(run(tmp_path / "c", (0.25, 0.25), True), run(tmp_path / "d", (0.25, 0.25), False))
    assert agreeing.verdict == "equivalent", agreeing.origin.reason


def test_a_rate_ten_times_too_large_is_named_though_its_argument_is_not_recorded(tmp_path: Path) -> None:
    class Faster(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            before = [parameter.detach().clone() for group in self.param_groups for parameter in group["params"]]
            super().step()
            with torch.no_grad():
                for parameter, old in zip((p for group in self.param_groups for p in group["params"]), before):
                    parameter.add_(9 * (parameter - old))

    model = Model(fused=True)
    target = train(tmp_path / "a", model, optimizer=Faster(model.parameters(), lr=1e-2))
    comparison = ns.compare(target, train(tmp_path / "b", Model()))
    assert comparison.verdict == "diverged"
    assert (comparison.origin.kind, comparison.origin.step) == ("optimizer", 0)


def test_a_loss_that_is_averaged_otherwise_is_named_where_it_is_made(tmp_path: Path) -> None:
    def run(path: Path, wrong: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(8, 6), torch.tensor([0, 1, 2, -100, -100, 3, 4, -100])
        with ns.capture(path, model, keep="tensors"):
            each = F.cross_entropy(model(x), y, reduction="none")
            loss = each.mean() if wrong else each.sum() / (y != -100).sum()
            loss.backward()
            optimizer.step()
        return path

    comparison = ns.compare(run(tmp_path / "a", True), run(tmp_path / "b", False))
    assert comparison.origin.call == "Tensor.mean.0.forward"
    assert comparison.origin.kind == "extra"


def test_a_layer_loaded_from_another_s_place_is_told_whose_weights_it_holds(tmp_path: Path) -> None:
    model = Model()
    model.blocks[1].up.load_state_dict(model.blocks[0].up.state_dict())
    report = ns.diagnose(train(tmp_path / "a", model, steps=1), train(tmp_path / "b", Model(), steps=1))
    assert report.origin.call == "blocks.1.up.weight"
    assert "now it holds blocks.0.up.weight" in report.origin.repair
