"""The chain from the line that shows a difference to what made it so, by captured runs of small models."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

import numscope as ns
from numscope.core.report import Origin


class Config:
    def __init__(self, norm_eps: float) -> None:
        self.norm_eps = norm_eps


class Norm(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class FromConfig(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.norm = Norm(config.norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def hot(x: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    return torch.tanh(x / temperature)


def cool(x: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    return torch.tanh(x / temperature)


class Scaled(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.size = 16
        if wide:
            self.scale = 64**-0.5
        else:
            self.scale = self.size**-0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.scale)


class Caller(nn.Module):
    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.passes = passes
        self.inner = Masked()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.passes:
            return self.inner(x, mask=x > 0)
        return self.inner(x)


class Masked(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = torch.sin(x)
        if mask is not None:
            x = x * mask
        return torch.tanh(x)


class Function(nn.Module):
    def __init__(self, hotter: bool) -> None:
        super().__init__()
        self.hotter = hotter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.hotter:
            return hot(x)
        return cool(x)


def origin_of(tmp_path: Path, target: nn.Module, reference: nn.Module) -> Origin:
    torch.manual_seed(0)
    x = torch.randn(8, 16) * 1e-2
    for name, model in (("target", target), ("reference", reference)):
        with ns.capture(tmp_path / name, model) as cap:
            model(x)
            cap.step()
    origin = ns.compare(tmp_path / "target", tmp_path / "reference").origin
    assert origin is not None
    return origin


def has(origin: Origin, *parts: str) -> None:
    """Assert that the chain has links with these parts, in this order."""
    left = list(origin.chain)
    for part in parts:
        found = next((number for number, link in enumerate(left) if part in link), None)
        assert found is not None, (part, origin.chain)
        del left[: found + 1]


def test_an_attribute_is_followed_through_its_constructor_to_the_configuration(tmp_path: Path) -> None:
    origin = origin_of(tmp_path, FromConfig(Config(1e-3)), FromConfig(Config(1e-6)))
    has(origin, "self.eps=0.001 (1e-06", "`self.eps = eps`", "`Norm(config.norm_eps)`", "config.norm_eps=0.001 (1e-06")


def test_of_two_assignments_the_one_that_gave_the_value_is_told(tmp_path: Path) -> None:
    origin = origin_of(tmp_path, Scaled(True), Scaled(False))
    has(origin, "self.scale=0.125 (0.25", "`self.scale = 64**-0.5`")


def test_a_default_is_told_with_its_function(tmp_path: Path) -> None:
    has(origin_of(tmp_path, Function(True), Function(False)), "temperature=2, the default of hot")


def test_the_caller_that_does_not_pass_an_argument_is_told(tmp_path: Path) -> None:
    has(origin_of(tmp_path, Caller(False), Caller(True)), "`return self.inner(x)` (`return self.inner(x, mask=x > 0)`")


def test_an_attribute_that_was_set_later_is_found_where_it_was_set(tmp_path: Path) -> None:
    def late() -> Norm:
        norm = Norm()
        norm.eps = 1e-2
        return norm

    target = late()
    has(origin_of(tmp_path, target, Norm()), "self.eps=0.01 (1e-06")


def test_without_stacks_no_source_is_kept_and_there_is_no_chain(tmp_path: Path) -> None:
    x = torch.randn(8, 16)
    for name, eps in (("target", 1e-1), ("reference", 1e-6)):
        model = Norm(eps)
        with ns.capture(tmp_path / name, model, stacks=False) as cap:
            model(x)
            cap.step()
    assert not (tmp_path / "target" / "rank0" / "program.json").exists()
    origin = ns.compare(tmp_path / "target", tmp_path / "reference").origin
    assert origin is not None
    assert not any("self.eps" in link for link in origin.chain)


class Conditional(nn.Module):
    def __init__(self, number: int, first: int) -> None:
        super().__init__()
        self.is_scaled = number % 2 == first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_scaled:
            x = x * 1.5
        return torch.tanh(x)


class Chosen(nn.Module):
    def __init__(self, config: Config, wide: bool) -> None:
        super().__init__()
        self.config = config
        if wide:
            self.norm = Wide(config.norm_eps)
        else:
            self.norm = Norm(config.norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


class Wide(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean((0, 1), keepdim=True) + self.eps)


def test_a_call_of_one_side_alone_is_followed_through_the_condition_that_it_stands_under(tmp_path: Path) -> None:
    origin = origin_of(tmp_path, Conditional(0, first=1), Conditional(0, first=0))
    has(origin, "`self.is_scaled`", "self.is_scaled=False (True", "`self.is_scaled = number % 2 == first`")


def test_a_module_of_another_class_is_followed_to_who_made_it(tmp_path: Path) -> None:
    origin = origin_of(tmp_path, Chosen(Config(1e-6), wide=True), Chosen(Config(1e-6), wide=False))
    has(origin, "norm is a Wide (a Norm in the reference)", "`self.norm = Wide(config.norm_eps)`")


class Held(nn.Module):
    def __init__(self, power: float) -> None:
        super().__init__()
        self.size, self.scaling = 16, {"main": 4.0**power}

    def forward(self, x: torch.Tensor, **more: float) -> torch.Tensor:
        kernel = scaled
        return kernel(self, x, scaling=self.scaling["main"], **more)


def scaled(module: nn.Module, x: torch.Tensor, scaling: float | None = None, **more: float) -> torch.Tensor:
    return torch.tanh(x * scaling)


def test_a_function_that_is_held_under_another_name_and_takes_more_is_followed(tmp_path: Path) -> None:
    has(origin_of(tmp_path, Held(0.5), Held(-0.5)), "kernel(self, x", "self.scaling={'main': 2.0} ({'main': 0.5}")
