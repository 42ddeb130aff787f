"""One rule, applied four ways: the guard at once and late, `numscope check` of a run of level mix and of level aten.

Each job names one origin, at the marked line, however it is looked at; or none, and nothing of ours goes wrong.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import numscope as ns
from numscope.check.checking import check
from tests.integration.births import Block, captured, marked

Job = tuple[Any, Callable[[], Any]]  # a model, and what is done with it
WAYS = ["at once", "late", "mix", "aten"]


def origins(way: str, make: Callable[[], Job], path: Path) -> list[Any]:
    """Return the origins of a job; a fault of our own is a warning, and so an error."""
    torch.manual_seed(0)
    model, job = make()
    if way in ("mix", "aten"):
        return list(check(captured(path, model, job, level=way)).origins)
    guard = ns.guard(model, max_hits=99, action="warn", record=None, deferred=way == "late", latency=5)
    with warnings.catch_warnings(record=True) as told, guard:
        warnings.simplefilter("always")
        job()
    assert not [str(item.message) for item in told if "could not" in str(item.message)]
    return guard.origins


def run(work: Callable[..., torch.Tensor], *parts: nn.Module) -> Job:
    """A module around one linear layer and a function, forward and backward."""
    model = Block(work, nn.Linear(4, 4), *parts)
    return model, lambda: model(torch.randn(3, 4)).sum().backward()


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x)  # origin
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


class Divides(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / (gradient - gradient)


def own_function() -> Job:
    return run(lambda self, x: Exp.apply(self.parts[0](x).abs() * 1e4))


def own_backward() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        return Divides.apply(self.parts[0](x))

    return run(work)


def heads() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.parts[0](x)[None]
        return self.parts[1](x, x, x, key_padding_mask=torch.ones(1, 3).bool(), need_weights=True)[0]  # origin

    return run(work, nn.MultiheadAttention(4, 2, batch_first=True))


def reflected() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.parts[0](x) * (1.0 / (1 - 0.9 ** torch.zeros(())))  # origin

    return run(work)


def buffer_of_nan() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        memory = torch.empty(3, 4)
        memory.view(-1).fill_(math.nan)
        return self.parts[0](x) + memory  # origin

    return run(work)


def trap() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.parts[0](x) * 0
        return torch.where(x > 0, torch.sqrt(x), 0.0)  # origin

    return run(work)


def penalty() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        gradient = torch.autograd.grad((self.parts[0](x) * 0).sum(), x, create_graph=True)[0]
        return gradient.square().sum().sqrt()  # origin

    return run(work)


def again_forward() -> Job:
    layer = nn.Linear(4, 4)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(layer(x).abs() * 1e6)  # origin

    model = Block(lambda self, x: checkpoint(inner, x, use_reentrant=True), layer)
    return model, lambda: model(torch.randn(3, 4, requires_grad=True)).sum().backward()


def again_backward() -> Job:
    layer = nn.Linear(4, 4)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(layer(x) * 0)  # origin

    model = Block(lambda self, x: checkpoint(inner, x, use_reentrant=True), layer)
    return model, lambda: model(torch.randn(3, 4, requires_grad=True)).sum().backward()


def closure() -> Job:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = (model(x) * 0).sqrt().sum()  # origin
        value.backward()
        return value

    return model, lambda: optimizer.step(loss)


def micro_batches() -> Job:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)

    def job() -> None:
        made = [first(torch.randn(2, 4)) for _ in range(3)]
        given = [item.detach().requires_grad_() for item in made]
        wrong = [1.0, 0.0, 1.0]
        losses = [torch.sqrt(second(item) * 0 + sign).sum() for item, sign in zip(given, wrong)]  # origin
        for loss, item, outer in zip(losses, given, made):
            loss.backward()
            outer.backward(item.grad)

    return nn.ModuleList([first, second]), job


def sparse() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        matrix = torch.eye(3).to_sparse().coalesce()
        matrix = torch.sparse_coo_tensor(matrix.indices(), matrix.values() / 0, (3, 3))  # origin
        return matrix @ self.parts[0](x)

    return run(work)


def history_that_is_averaged() -> Job:
    model, losses = nn.Linear(4, 4), torch.full((5,), math.nan)

    def job() -> None:
        loss = model(torch.randn(3, 4)).sum()
        losses[0] = loss.detach()
        (loss / losses[:3].mean()).backward()  # origin

    return model, job


BORN = [
    own_function,
    own_backward,
    heads,
    reflected,
    buffer_of_nan,
    trap,
    penalty,
    again_forward,
    again_backward,
    closure,
    micro_batches,
    sparse,
    history_that_is_averaged,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", BORN)
def test_there_is_one_origin_and_it_has_the_line(make: Callable[[], Job], way: str, tmp_path: Path) -> None:
    found = origins(way, make, tmp_path / "run")
    assert len(found) == 1, [item.reason for item in found]
    assert found[0].source is not None
    if make is own_function:
        assert found[0].source.line == marked(Exp)
    elif make is not own_backward:  # the engine runs it: the line is that of `apply`, or the one inside
        assert found[0].source.line == marked(make)


def norm_at_zero() -> Job:
    return run(lambda self, x: torch.norm(self.parts[0](x) * 0) + F.normalize(self.parts[0](x) * 0).sum())


def angle_at_zero() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.parts[0](x) * 0
        return torch.atan2(x, x) + torch.complex(x, x).abs() + torch.complex(x, x).angle()

    return run(work)


def impossible_target() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        scores = F.log_softmax(self.parts[0](x).view(3, 1, 4), -1)
        target = torch.tensor([[1, 1, 2, 2, 3]])
        return F.ctc_loss(scores, target, torch.tensor([3]), torch.tensor([5]), zero_infinity=True)

    return run(work)


def masked_logsumexp() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.parts[0](x)
        return torch.logsumexp(x @ x.T + torch.triu(torch.full((3, 3), -math.inf), 1), -1)

    return run(work)


def memory_that_is_filled() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        memory = torch.empty(4, 4)
        memory.view(-1)[:].fill_(math.nan)
        memory[:3].copy_(self.parts[0](x).detach())
        rows = torch.full((3, 4), math.nan)
        for row in range(3):
            rows[row] = memory[row]
        return self.parts[0](x) + memory[:3] + rows

    return run(work)


def no_data() -> Job:
    model = nn.Linear(4, 4, device="meta")
    return model, lambda: model(torch.empty(3, 4, device="meta")).sum()


def transforms() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        gradient = torch.func.vmap(torch.func.grad(lambda v: (v * v).sum()))(x)
        return self.parts[0](x) + gradient + torch.func.jacrev(torch.sin)(x[0]).sum()

    return run(work)


def nested() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        ragged = torch.nested.nested_tensor([x[:1], x], layout=torch.jagged)
        return torch.nested.to_padded_tensor(F.relu(self.parts[0](ragged)), 0.0)

    return run(work)


def inference() -> Job:
    model = nn.Linear(4, 4)

    def job() -> None:
        with torch.inference_mode():
            model(torch.randn(3, 4)).softmax(-1).add_(1)
        model(torch.randn(3, 4)).sum().backward()

    return model, job


def traced() -> Job:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def job() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(model, torch.randn(3, 4))
        model(torch.randn(3, 4)).sum().backward()

    return model, job


def history_from_before() -> Job:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("cache", torch.full((8, 4), math.nan))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            self.cache[:3] = y.detach()
            return y + self.cache[:3]

    model, losses = Keeps(), torch.full((5,), math.nan)

    def job() -> None:
        loss = model(torch.randn(3, 4)).sum()
        loss.backward()
        losses[0] = loss.detach()
        later = torch.cat([losses[1:], loss.detach()[None]])
        losses.copy_(later)
        losses.nanmean()

    return model, job


def metrics_with_nan() -> Job:
    model = nn.Linear(4, 4)

    def job() -> None:
        y = model(torch.randn(3, 4))
        y.sum().backward()
        y = y.detach()
        y.masked_fill(y < 0, math.nan).nanmean()
        torch.where(y > 0, y, math.nan).nansum()
        torch.nan_to_num(F.pad(y, (0, 2), value=math.nan)).sum()
        rows = torch.stack([y, torch.full((3, 4), math.nan)])
        rows[~rows.isnan()].mean()

    return model, job


def number_that_stands_for_none() -> Job:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        cost = F.softplus(self.parts[0](x))
        near = torch.where(torch.eye(3, 4).bool(), cost, torch.tensor(math.inf))
        near = torch.minimum(near, near + 1)
        return near[near.isfinite()]

    return run(work)


def samples_of_a_module() -> Job:
    model = nn.Linear(4, 4)

    def job() -> None:
        one = lambda weights, x: torch.func.functional_call(model, weights, (x[None],)).sum()  # noqa: E731
        torch.func.vmap(torch.func.grad(one), (None, 0))(dict(model.named_parameters()), torch.randn(3, 4))

    return model, job


SILENT = [
    norm_at_zero,
    angle_at_zero,
    impossible_target,
    masked_logsumexp,
    memory_that_is_filled,
    no_data,
    transforms,
    nested,
    inference,
    traced,
    history_from_before,
    metrics_with_nan,
    number_that_stands_for_none,
    samples_of_a_module,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", SILENT)
def test_nothing_is_found_and_nothing_of_ours_goes_wrong(make: Callable[[], Job], way: str, tmp_path: Path) -> None:
    assert origins(way, make, tmp_path / "run") == []


def test_a_fault_of_the_guards_own_does_not_stop_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    from numscope.capture.torch.guard import on_cpu

    def broken(*_: object) -> bool:
        raise AttributeError("no such thing")

    model = nn.Linear(4, 4)
    monkeypatch.setattr(on_cpu, "look_at_call", broken)
    with warnings.catch_warnings(record=True) as told, ns.guard(model, record=None):
        warnings.simplefilter("always")
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
    said = [str(item.message) for item in told]
    assert sum("could not record a call (Functional.linear: AttributeError" in text for text in said) == 1
    assert model.weight.grad is not None
