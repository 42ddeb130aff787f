"""A model that was ported: other names, fused or split calls, another precision, another way to write the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import numscope as ns

VOCABULARY, WIDTH, HEADS, KV_HEADS = 40, 32, 4, 2
PER_HEAD = WIDTH // HEADS


def angles(length: int) -> torch.Tensor:
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, PER_HEAD, 2).float() / PER_HEAD)
    return torch.outer(torch.arange(length).float(), frequencies)


def rotate_halves(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    half = x.shape[-1] // 2
    return (x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin).to(x.dtype)


def rotate_complex(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.complex(x[..., :half].float(), x[..., half:].float()) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, KV_HEADS * PER_HEAD, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, PER_HEAD).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate_halves(q, angle), rotate_halves(k, angle)
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(PER_HEAD) + torch.full((length, length), -math.inf).triu(1)
        return self.o_proj((scores.float().softmax(-1).to(v.dtype) @ v).transpose(1, 2).reshape(batch, length, WIDTH))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.gate, self.up = (nn.Linear(WIDTH, 48, bias=False) for _ in range(2))
        self.down = nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), angle)
        hidden = self.norm2(x)
        return x + self.down(F.silu(self.gate(hidden)) * self.up(hidden))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, angle = self.embed(ids), angles(ids.shape[1])
        for layer in self.layers:
            x = layer(x, angle)
        return self.head(self.norm(x))


class Block(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug = bug
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.wqkv = nn.Linear(WIDTH, WIDTH + 2 * KV_HEADS * PER_HEAD, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)
        self.w13, self.w2 = nn.Linear(WIDTH, 96, bias=False), nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.wqkv(self.n1(x)).split([WIDTH, KV_HEADS * PER_HEAD, KV_HEADS * PER_HEAD], -1)
        q, k, v = (part.view(batch, length, -1, PER_HEAD).transpose(1, 2) for part in parts)
        q, k = rotate_complex(q, angle), rotate_complex(k, angle)
        if self.bug == "repeat":
            k, v = (part.repeat(1, HEADS // KV_HEADS, 1, 1) for part in (k, v))
        else:
            k, v = (
                part[:, :, None].expand(-1, -1, HEADS // KV_HEADS, -1, -1).reshape(batch, HEADS, length, PER_HEAD)
                for part in (k, v)
            )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        gate, up = self.w13(self.n2(x)).chunk(2, -1)
        return x + self.w2((F.gelu if self.bug == "gelu" else F.silu)(gate) * up)


class Fused(nn.Module):
    """The same model as Plain with fused weights, complex rotations, torch's attention, and all other names."""

    def __init__(self, source: Plain, bug: str = "") -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(bug if place == 1 else "") for place in range(2))
        self.last, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        with torch.no_grad():
            self.tokens.weight.copy_(source.embed.weight)
            self.out.weight.copy_(source.head.weight)
            for block, layer in zip(self.blocks, source.layers):
                attention = layer.attention
                block.wqkv.weight.copy_(
                    torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
                )
                block.wo.weight.copy_(attention.o_proj.weight)
                block.w13.weight.copy_(torch.cat([layer.gate.weight, layer.up.weight]))
                block.w2.weight.copy_(layer.down.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, angle = self.tokens(ids), angles(ids.shape[1])
        for block in self.blocks:
            x = block(x, angle)
        return self.out(self.last(x))


class Held(nn.Module):
    """A model inside another, as libraries have it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids)


def batches(count: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        yield torch.randint(0, VOCABULARY, (3, 11), generator=generator)


def cross_entropy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1).float(), labels.flatten())


def trained(
    path: Any,
    model: nn.Module,
    *,
    steps: int = 2,
    loss: Callable[..., torch.Tensor] = cross_entropy,
    autocast: bool = False,
    decay: float = 0.01,
) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=decay)
    with ns.capture(path, model, on_error="raise") as cap:
        for ids in batches(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                value = loss(model(ids[:, :-1]), ids[:, 1:])
            value.backward()
            optimizer.step()
            cap.step()
    return path


def plain(seed: int = 0) -> Plain:
    torch.manual_seed(seed)
    return Plain()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_model_rewritten_with_fused_calls_and_other_names_is_equivalent(tmp_path, dtype):
    reference = trained(tmp_path / "reference", plain())
    found = ns.compare(trained(tmp_path / "target", Fused(plain()).to(dtype)), reference)
    assert found.verdict == "equivalent", found
    swapped = ns.compare(reference, tmp_path / "target")
    assert swapped.verdict == "equivalent", swapped


@pytest.mark.parametrize(
    ("bug", "dtype"), [("repeat", torch.float32), ("gelu", torch.float32), ("gelu", torch.bfloat16)]
)
def test_a_bug_in_a_rewritten_model_is_named_where_it_is(tmp_path, bug, dtype):
    reference = trained(tmp_path / "reference", plain(), steps=1)
    found = ns.compare(trained(tmp_path / "target", Fused(plain(), bug).to(dtype), steps=1), reference)
    assert found.origin is not None
    assert f".{bug}." in found.origin.call, found
    assert found.origin.module == "blocks.1"


def test_an_optimizer_knows_renamed_parameters_by_their_values(tmp_path):
    reference = trained(tmp_path / "reference", plain(), steps=1)
    model = Fused(plain())
    model.blocks[1].wo.requires_grad_(False)  # this one both have
    found = ns.compare(trained(tmp_path / "target", model, steps=1), reference)
    assert found.verdict == "diverged"
    assert "o_proj.weight" in found.origin.reason or "wo" in found.origin.reason, found


class Transposed(nn.Module):
    """A linear layer as GPT-2's code has it."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(x.detach().clone()) for x in (source.weight.t(), source.bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


def test_weights_that_are_kept_transposed_are_no_other_parameters(tmp_path):
    def run(name: str, change: Callable[[nn.Linear], nn.Module]) -> Any:
        torch.manual_seed(0)
        layers = [nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, VOCABULARY)]
        return trained(tmp_path / name, nn.Sequential(nn.Embedding(VOCABULARY, 8), *map(change, layers)))

    found = ns.compare(run("target", Transposed), run("reference", lambda layer: layer))
    assert found.verdict == "equivalent", found


def test_modules_inside_a_further_module_are_paired_by_the_rest_of_their_path(tmp_path):
    reference = trained(tmp_path / "reference", plain(), steps=1)
    found = ns.compare(trained(tmp_path / "same", Held(plain()), steps=1), reference)
    assert found.verdict == "equivalent"
    assert found.report.coverage["unmatched_reference"] == 0
    model = plain()
    nn.init.normal_(model.layers[1].up.weight)
    found = ns.compare(trained(tmp_path / "other", Held(model), steps=1), reference)
    assert (found.origin.kind, found.origin.module) == ("parameter", "model.layers.1.up")


@pytest.mark.parametrize(
    ("dtypes", "autocast", "told"),
    [
        ((torch.bfloat16, torch.float32), False, "the target computes in bfloat16, the reference in float32"),
        ((torch.bfloat16, torch.float64), False, "the target computes in bfloat16, the reference in float64"),
        ((torch.float32, torch.bfloat16), True, "the target's parameters are float32, the reference's bfloat16"),
        ((torch.float32, torch.float32), True, "the target computes in bfloat16, the reference in float32"),
    ],
)
def test_runs_of_two_precisions_are_equivalent_and_called_so(tmp_path, dtypes, autocast, told):
    target = trained(tmp_path / "target", plain().to(dtypes[0]), autocast=autocast)
    found = ns.compare(target, trained(tmp_path / "reference", plain().to(dtypes[1])))
    assert found.verdict == "equivalent", found
    assert told in found.report.reason
    told_json = found.report.to_dict()["details"]["conditions"]
    assert told_json["sentence"] == told
    assert set(told_json["precisions"]) == {"target", "reference"}


def test_a_setting_that_bfloat16_is_too_coarse_to_show_is_told(tmp_path):
    target, reference = (
        trained(tmp_path / str(decay), plain().to(dtype), decay=decay)
        for decay, dtype in ((0.1, torch.bfloat16), (0.01, torch.float32))
    )
    found = ns.compare(target, reference)
    assert found.verdict == "equivalent"
    assert "AdamW 0.weight_decay 0.1 against 0.01" in found.report.reason


def test_runs_of_one_precision_say_nothing_of_it(tmp_path):
    found = ns.compare(trained(tmp_path / "a", plain()), trained(tmp_path / "b", plain()))
    assert found.verdict == "identical"
    assert found.report.details.keys() == {"losses"}


def test_float32_masters_of_a_bfloat16_model_are_its_parameters(tmp_path):
    model = plain().bfloat16()
    masters = [parameter.detach().float().clone().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    with ns.capture(tmp_path / "target", model, on_error="raise") as cap:
        for ids in batches(2):
            model.zero_grad()
            cross_entropy(model(ids[:, :-1]), ids[:, 1:]).backward()
            for parameter, master in zip(model.parameters(), masters):
                master.grad = parameter.grad.float()
            optimizer.step()
            with torch.no_grad():
                for parameter, master in zip(model.parameters(), masters):
                    parameter.copy_(master)
            cap.step()
    assert ns.compare(tmp_path / "target", trained(tmp_path / "reference", plain())).verdict == "equivalent"


def scaled(path: Any, half: bool, unscale: bool = True) -> Any:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=half)
    with ns.capture(path, model, on_error="raise") as cap:
        for ids in batches(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16, enabled=half):
                loss = cross_entropy(model(ids[:, :-1]), ids[:, 1:])
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            cap.step()
    return path


def test_gradients_are_compared_without_the_loss_scale(tmp_path):
    reference = scaled(tmp_path / "reference", half=False)
    found = ns.compare(scaled(tmp_path / "target", half=True), reference)
    assert found.verdict == "equivalent", found
    assert found.report.details["conditions"]["loss_scales"] == {"target": 256.0, "reference": 1.0}
    assert "without the loss scale" in found.report.reason
    found = ns.compare(scaled(tmp_path / "clipped", half=True, unscale=False), reference)
    assert found.origin is not None
    assert "norm" in found.origin.call, found


def test_what_a_scaler_divides_is_recorded(tmp_path):
    run = ns.open_run(scaled(tmp_path / "run", half=True))
    names = run.calls["name"].to_pylist()
    assert "Torch._amp_foreach_non_finite_check_and_unscale_.0.forward" in names


def test_a_sum_that_is_divided_by_the_count_is_a_mean(tmp_path):
    def summed(count: float) -> Callable[..., torch.Tensor]:
        return lambda out, labels: F.cross_entropy(out.flatten(0, 1), labels.flatten(), reduction="sum") / count

    reference = trained(tmp_path / "reference", plain())
    found = ns.compare(trained(tmp_path / "target", plain(), loss=summed(30)), reference)
    assert found.verdict == "equivalent", found
    assert ns.compare(reference, tmp_path / "target").verdict == "equivalent"
    found = ns.compare(trained(tmp_path / "wrong", plain(), loss=summed(29)), reference)
    assert found.origin is not None
    assert "cross_entropy" in found.origin.call, found


def test_a_further_term_of_the_loss_is_named_and_not_a_layout_beside_it(tmp_path):
    def further(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.flatten(0, 1), labels.flatten()) + 1e-3 * output.logsumexp(-1).square().mean()

    reference = trained(
        tmp_path / "reference", plain(), loss=lambda o, y: F.cross_entropy(o.reshape(-1, VOCABULARY), y.reshape(-1))
    )
    found = ns.compare(trained(tmp_path / "target", plain(), loss=further), reference)
    assert found.origin is not None
    assert found.origin.kind == "extra"
    assert "logsumexp" in found.origin.call, found


def test_statistics_that_a_call_of_this_step_changed_are_its_fault(tmp_path):
    def used(path: Any, momentum: float) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=momentum))
        with ns.capture(path, model, on_error="raise") as cap:
            model(torch.randn(8, 4))
            model.eval()
            model(torch.randn(8, 4))
            cap.step()
        return path

    found = ns.compare(used(tmp_path / "target", 0.01), used(tmp_path / "reference", 0.1))
    assert found.origin is not None
    assert "1.BatchNorm1d" in found.origin.call, found
    assert "before any call" not in found.origin.reason
