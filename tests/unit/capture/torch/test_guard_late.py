"""Looks that wait: nothing is lost to what happens before they are launched, and few launches are made."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import numscope as ns
from numscope.capture.torch.guard import flags as flags_module
from numscope.capture.torch.guard.device_log import MODULES_THAT_TRANSMIT
from numscope.capture.torch.guard.flags import Pending, PlainLauncher
from numscope.capture.torch.guard.frontend import room_on
from numscope.core.operators import Trait, canonical, names_with

# One way to call each operator that is said to transmit: from operands of shape (3, 4).
CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "linear": lambda a, b: F.linear(a, b, b.sum(1)),
    "matmul": lambda a, b: torch.matmul(a, b.T),
    "mm": lambda a, b: torch.mm(a, b.T),
    "bmm": lambda a, b: torch.bmm(a[None], b.T[None]),
    "__matmul__": lambda a, b: a @ b.T,
    "add": lambda a, b: torch.add(a, b, alpha=0),
    "__add__": lambda a, b: a + b,
    "__radd__": lambda a, b: 2.0 + a,
    "sub": torch.sub,
    "__sub__": lambda a, b: a - b,
    "__rsub__": lambda a, b: 1.0 - a,
    "mul": lambda a, b: torch.mul(a, b * 0),
    "__mul__": lambda a, b: a * b,
    "__rmul__": lambda a, b: 0.0 * a,
    "layer_norm": lambda a, b: F.layer_norm(a, (4,), b[0] * 0, b[1]),
    "rms_norm": lambda a, b: F.rms_norm(a, (4,), b[0]),
    "gelu": lambda a, b: F.gelu(a) + 0 * F.gelu(a, approximate="tanh"),
    "silu": lambda a, b: F.silu(a),
    "float": lambda a, b: a.double().float(),
    "double": lambda a, b: a.double(),
    "half": lambda a, b: a.half(),
    "bfloat16": lambda a, b: a.bfloat16(),
    "contiguous": lambda a, b: a.T.contiguous(),
    "clone": lambda a, b: a.clone(),
    "reshape": lambda a, b: a.T.reshape(12),
    "cat": lambda a, b: torch.cat([b, a]),
    "stack": lambda a, b: torch.stack([a, b]),
    "neg": lambda a, b: torch.neg(a),
    "sum": lambda a, b: a.sum(0),
}
SPECIAL = st.sampled_from([math.nan, math.inf, -math.inf])


def test_every_operator_that_is_said_to_transmit_is_tried() -> None:
    assert {canonical(op) for op in CALLS} == names_with(Trait.TRANSMITS)


@pytest.mark.parametrize("op", sorted(CALLS))
@given(special=SPECIAL, place=st.integers(0, 11), seed=st.integers(0, 99), scale=st.sampled_from([0.0, 1.0, 1e4]))
@settings(max_examples=25, deadline=None)
def test_what_is_not_finite_goes_through(op: str, special: float, place: int, seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    a, b = torch.randn(3, 4) * scale, torch.randn(3, 4)
    a.view(-1)[place] = special
    assert not torch.isfinite(CALLS[op](a, b)).all()


@pytest.mark.parametrize("op", sorted(CALLS))
@given(special=SPECIAL, place=st.integers(0, 999), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_gradients_that_are_not_finite_go_through(op: str, special: float, place: int, seed: int) -> None:
    torch.manual_seed(seed)
    a = torch.randn(3, 4, requires_grad=True)
    out = CALLS[op](a, torch.randn(3, 4) * 0 if seed % 2 else torch.randn(3, 4))
    gradient = torch.randn(out.shape).to(out.dtype)
    if op == "cat":
        place = 12 + place % 12  # what belongs to the other operand goes there
    if op == "stack":
        place = place % 12
    gradient.view(-1)[place % gradient.numel()] = special
    out.backward(gradient)
    assert a.grad is not None
    assert not torch.isfinite(a.grad).all()


@pytest.mark.parametrize("kind", sorted(MODULES_THAT_TRANSMIT, key=lambda kind: kind.__name__))
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_modules_that_are_said_to_transmit_do(kind: type[nn.Module], special: float) -> None:
    module = kind(4, 4) if kind is nn.Linear else kind(4) if "Norm" in kind.__name__ else kind()
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    values = torch.randn(3, 4)
    values[1, 2] = special
    assert not torch.isfinite(module(values)).all()


def origin_of(job: Callable[[], Any], model: nn.Module | None = None, **settings: Any) -> dict[str, Any]:
    with pytest.raises(ns.NonFiniteError) as caught, ns.guard(model, deferred=True, **{"record": None, **settings}):
        job()
    return caught.value.origin


@pytest.mark.parametrize(
    "overwrite",
    [
        lambda x: x.fill_(1.0),
        lambda x: x.view(-1).zero_(),
        lambda x: x.__setitem__(slice(None), 2.0),
        lambda x: torch._foreach_zero_([x]),
        lambda x: torch.ones(8, out=x),
        lambda x: F.hardtanh_(x),
        lambda x: x.data.zero_(),
    ],
)
def test_what_waits_is_looked_at_before_it_is_overwritten(overwrite: Callable[[torch.Tensor], Any]) -> None:
    def job() -> None:
        x = torch.log(torch.zeros(8))
        overwrite(x)
        (x + 1).sum()

    assert origin_of(job)["call"] == "Torch.log.0.forward"


class Logs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x * 0)


def test_at_module_level_too() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Logs(), nn.Hardtanh(inplace=True), nn.Linear(4, 4))
    origin = origin_of(lambda: model(torch.ones(2, 4)), model, level="module")
    assert origin["call"] == "Module.1.Logs.forward.0"


def test_a_function_of_the_users_own_may_overwrite_what_it_is_given() -> None:
    class Consumes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            x.untyped_storage().fill_(0)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return gradients[0]

    assert origin_of(lambda: Consumes.apply(torch.log(torch.zeros(8))))["call"] == "Torch.log.0.forward"


def test_a_long_chain_needs_one_look_and_names_its_first_call() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        x = x * 1e30
        for _ in range(20):
            x = x * 1e30 + 1.0  # origin
        return x

    model = nn.Linear(4, 4)
    origin = origin_of(lambda: chain(model(torch.ones(2, 4))).sum().backward(), model)
    assert origin["call"] == "Tensor.mul.1.forward"


class Counted(PlainLauncher):
    """Counts launches and the elements that are read."""

    def __init__(self) -> None:
        self.launches = self.read = self.spared = 0

    def one(self, values: torch.Tensor, buffer: torch.Tensor, row: int) -> None:
        self.launches += 1
        self.read += values.numel()
        super().one(values, buffer, row)

    def many(self, looks: list[tuple[torch.Tensor, int, int]], buffer: torch.Tensor) -> None:
        self.launches += 1
        self.read += sum(values.numel() for values, _, root in looks if root < 0)
        self.spared += sum(values.numel() for values, _, root in looks if root >= 0)
        buffer[[row for _, row, _ in looks]] = 0


@pytest.mark.parametrize(("level", "launches"), [("mix", 14), ("module", 24)])
def test_a_step_makes_few_launches_and_spares_most_elements(
    level: str, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted()
    monkeypatch.setattr(flags_module, "_launcher", lambda device: counted)
    blocks = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(6)]
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(64, 8)).square().mean().backward()
        optimizer.step()

    with ns.guard(model, record=None, deferred=True, level=level):
        step()
        step()
        counted.launches = counted.read = counted.spared = 0
        step()
        assert counted.launches <= launches
        parameters = sum(parameter.numel() for parameter in model.parameters())
        assert counted.spared > 3 * (counted.read - 2 * parameters)


# What is held ---------------------------------------------------------------------------------------------------------


def job_with_log(model: nn.Module, calls_after: int = 0) -> Callable[[], None]:
    def job() -> None:
        x = torch.log(model(torch.ones(2, 4)) * 0)
        for _ in range(calls_after):
            x = x.softmax(-1)
        del x

    return job


@pytest.mark.parametrize("level", ["mix", "module"])
def test_the_record_has_the_origins_tensors_though_the_job_has_let_them_go(level: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Logs()) if level == "module" else nn.Linear(4, 4)
    job = (lambda: model(torch.ones(2, 4)).sum().item()) if level == "module" else job_with_log(model)
    name = origin_of(job, model, record=tmp_path / "run", level=level)["call"]
    run = ns.open_run(tmp_path / "run")
    assert (run.tensor(f"{name}.output.0") == -math.inf).all()
    assert run.tensor(f"{name}.input.0").shape == (2, 4)
    assert not run.skipped()


def test_parameters_of_the_origin_are_in_the_record(tmp_path: Path) -> None:
    model = nn.Linear(4, 4).half()
    nn.init.constant_(model.weight, 6e4)
    origin_of(lambda: model(torch.ones(2, 4, dtype=torch.half)), model, record=tmp_path / "run")
    run = ns.open_run(tmp_path / "run")
    assert (run.tensor("Functional.linear.0.forward.input.1") == 6e4).all()


def test_what_had_to_go_is_said_and_how_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pending, "ready", property(lambda pending: False))  # a device far behind
    model = nn.Linear(4, 4)
    with (
        pytest.raises(ns.NonFiniteError, match="latency=1"),
        ns.guard(model, deferred=True, record=tmp_path / "run", memory=100, level="mix"),
    ):
        job_with_log(model, calls_after=300)()
    run = ns.open_run(tmp_path / "run")
    assert run.calls["name"].to_pylist()[-1] == "Torch.log.0.forward"
    assert any("memory=" in reason for reason in run.skipped())


def test_latency_keeps_what_would_have_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pending, "ready", property(lambda pending: False))
    model = nn.Linear(4, 4)
    origin_of(job_with_log(model, 300), model, record=tmp_path / "run", memory=100, latency=1)
    assert (ns.open_run(tmp_path / "run").tensor("Torch.log.0.forward.output.0") == -math.inf).all()


class Token:
    """Something that a graph keeps alive."""


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, token: Token) -> torch.Tensor:
        ctx.token = token
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def test_the_graph_is_not_kept_alive() -> None:
    model = nn.Linear(4, 4)
    token = Token()
    alive = weakref.ref(token)
    with ns.guard(model, deferred=True, record=None):
        out = Keeps.apply(model(torch.ones(2, 4)), token).exp()
        del token
        assert alive() is not None
        del out
        gc.collect()
        assert alive() is None


def test_what_is_held_is_bounded() -> None:
    guard = ns.guard(None, deferred=True, record=None, memory=40_000)
    with guard:
        for _ in range(300):
            torch.ones(1000).exp()
        ring = guard._frontend.job.ring  # type: ignore[attr-defined]
        assert ring._held <= 40_000
        assert len(ring) >= 64


class Card:
    """A device's memory, as torch.cuda tells of it."""

    def __init__(self, free: int, reserved: int, peak: int) -> None:
        self.mem_get_info = lambda device: (free, 1000)
        self.memory_reserved = lambda device: reserved
        self.max_memory_allocated = lambda device: peak


@pytest.mark.parametrize(
    ("free", "reserved", "peak", "room"), [(800, 200, 100, 50), (20, 900, 860, 30), (0, 900, 900, 0)]
)
def test_on_a_device_the_record_leaves_the_job_its_memory(free: int, reserved: int, peak: int, room: int) -> None:
    assert room_on(torch.device("cuda", 0), Card(free, reserved, peak)) == room
