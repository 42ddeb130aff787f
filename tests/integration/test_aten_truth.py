"""At level aten every fingerprint is the definition's of what was there, whatever has written to it."""

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import numscope as ns
from numscope.capture.torch import watch
from tests.integration.aten_observer import Observer, assert_true, run, true_hash


def shape_of(tensors: list[torch.Tensor], place: int) -> torch.Tensor:
    return tensors[place % len(tensors)]


def through_address(tensor: torch.Tensor) -> None:
    ctypes.c_float.from_address(tensor.data_ptr()).value += 1.0


def through_storage(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    storage.copy_(torch.full((storage.nbytes() // 4,), 2.5).untyped_storage())


def in_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def preserved(tensor: torch.Tensor) -> None:
    with torch.autograd._unsafe_preserve_version_counter(tensor):
        tensor.add_(1)
        tensor.sin()
        tensor.mul_(0.5)


def raising(x: torch.Tensor, y: torch.Tensor) -> None:
    with suppress(RuntimeError):
        torch._foreach_add_([x, y], [torch.ones(()), torch.ones(7)])


def fused(x: torch.Tensor, y: torch.Tensor, scale: bool) -> None:
    if x.untyped_storage()._cdata == y.untyped_storage()._cdata or x.dim() != 2:
        return
    state = [torch.zeros_like(x), torch.zeros_like(x)]
    torch._fused_adamw_(
        [x],
        [y.expand_as(x).contiguous()],
        state[:1],
        state[1:],
        [],
        [torch.ones(())],
        lr=0.5,
        beta1=0.9,
        beta2=0.9,
        weight_decay=0.1,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
        grad_scale=torch.full((), 2.0) if scale else None,
        found_inf=torch.zeros(()) if scale else None,
    )
    state[0].sin()


def reserve(tensors: list[torch.Tensor], x: torch.Tensor) -> None:
    memory = torch.empty(4, 4)
    memory.view(16)
    memory[:2].copy_(x[:1, :1])
    memory[2:].fill_(3.0)
    tensors.append(memory)


# What a program is made of: each gets the tensors it has, of four by four elements, and two of them.
ACTIONS: dict[str, Callable[[list[torch.Tensor], torch.Tensor, torch.Tensor], Any]] = {
    "read": lambda ts, x, y: x + y,
    "multiply": lambda ts, x, y: ts.append(torch.mm(x, y) * 0.1),
    "transpose": lambda ts, x, y: ts.append(x.t()),
    "see": lambda ts, x, y: x.t().exp(),
    "part": lambda ts, x, y: x[1:3].mul(2),
    "alias": lambda ts, x, y: ts.append(x.detach()),
    "unbind": lambda ts, x, y: torch.unbind(x),
    "add_": lambda ts, x, y: x.add_(1),
    "mul_ part": lambda ts, x, y: x[1:3].mul_(0.5),
    "mul_ view": lambda ts, x, y: x.t().mul_(0.5),
    "copy_": lambda ts, x, y: x.copy_(y.clone()),
    "zero_": lambda ts, x, y: x.zero_(),
    "setitem": lambda ts, x, y: x.__setitem__((0, slice(None)), 3.0),
    "index_put_": lambda ts, x, y: x.index_put_((torch.tensor([0]),), torch.ones(4)),
    "out": lambda ts, x, y: torch.add(y.clone(), 1, out=x),
    "out part": lambda ts, x, y: torch.sin(torch.ones(2, 4), out=x[2:]),
    "foreach": lambda ts, x, y: torch._foreach_add_([x, torch.ones(3)], 1),
    "foreach twice": lambda ts, x, y: [torch._foreach_mul_([x], 0.5), torch._foreach_add_([x, y], 1)],
    "foreach raises": lambda ts, x, y: raising(x, y),
    "fused": lambda ts, x, y: fused(x, y, False),
    "fused, scaled": lambda ts, x, y: fused(x, y, True),
    "data": lambda ts, x, y: x.data.add_(1),
    "data is held": lambda ts, x, y: ts.append(x.data),
    "other data": lambda ts, x, y: setattr(x, "data", torch.full((4, 4), 0.25)) if x._base is None else None,
    "numpy": lambda ts, x, y: x.detach().numpy().__setitem__((0, 0), 9.0),
    "array": lambda ts, x, y: np.asarray(x.detach()).__setitem__((0, 0), 8.0),
    "dlpack": lambda ts, x, y: torch.from_dlpack(x.detach()).mul_(0.5),
    "address": lambda ts, x, y: through_address(x),
    "storage": lambda ts, x, y: through_storage(x),
    "another thread": lambda ts, x, y: in_thread(lambda: x.add_(1)),
    "foreach in another thread": lambda ts, x, y: in_thread(lambda: torch._foreach_add_([x], 1)),
    "preserved": lambda ts, x, y: preserved(x),
    "memory": lambda ts, x, y: reserve(ts, x),
}


LISTS = [0, 16]  # tensors that are looked up one by one: with more they are all at once


@settings(max_examples=150, deadline=None)
@example([("alias", 0, 0), ("read", 0, 2), ("foreach", 2, 0), ("read", 0, 2)], 0)
@example([("see", 0, 0), ("another thread", 0, 0), ("see", 0, 0)], 16)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 7), st.integers(0, 7)), max_size=25),
    st.sampled_from(LISTS),
)
def test_a_random_program_is_recorded_as_it_was(program: list[tuple[str, int, int]], longest: int) -> None:
    def work(observer: Observer) -> None:
        tensors = [torch.arange(16.0).reshape(4, 4) / 7, torch.eye(4)]
        for action, first, second in program:
            ACTIONS[action](tensors, shape_of(tensors, first), shape_of(tensors, second))

    with patch.object(watch, "LIST", longest):
        assert_true(*run(work))


class Own(torch.optim.Optimizer):
    """An optimizer of the user's: what it does beside operators no mode sees."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        if closure is not None:
            closure()
        for parameter in self.param_groups[0]["params"]:
            mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
            mean.lerp_(parameter.grad, 0.5)
            behind_torch(mean)
            torch._foreach_add_([parameter], [mean])
            behind_torch(parameter)
            parameter.mul_(0.9)
            behind_torch(parameter)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "fused": lambda ps: torch.optim.AdamW(ps, lr=0.1, fused=True),
    "foreach": lambda ps: torch.optim.Adam(ps, lr=0.1, foreach=True, amsgrad=True),
    "single": lambda ps: torch.optim.AdamW(ps, lr=0.1, foreach=False),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=True),
    "own": Own,
}


def behind_torch(tensor: torch.Tensor) -> None:
    """Have torch write, then a kernel of the user's that takes the tensor and never asks Python for its address."""
    with torch.no_grad():
        tensor.mul_(0.5)
    ctypes.c_float.from_address(torch._C.TensorBase.data_ptr(tensor)).value += 1.0


def stepped(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()


def hooked(optimizer: torch.optim.Optimizer) -> None:
    """Have a hook of the user's write when the step is done, before numscope's own hook."""
    address = ctypes.c_float.from_address(torch._C.TensorBase.data_ptr(optimizer.param_groups[0]["params"][0]))
    handle = optimizer.register_step_post_hook(lambda *_: setattr(address, "value", 5.0))
    optimizer.step()
    handle.remove()


def hooked_before(optimizer: torch.optim.Optimizer) -> None:
    def hook(*_: Any) -> None:
        for values in optimizer.state.values():
            for value in values.values():
                if isinstance(value, torch.Tensor):
                    behind_torch(value)

    handle = optimizer.register_step_pre_hook(hook)
    optimizer.step()
    handle.remove()


def hooked_behind(optimizer: torch.optim.Optimizer) -> None:
    """Have a hook of the user's write to a gradient when numscope's own has looked at it."""
    gradient = optimizer.param_groups[0]["params"][0].grad
    torch._foreach_mul_([gradient], 0.5)
    element = ctypes.c_float.from_address(torch._C.TensorBase.data_ptr(gradient))
    handle = optimizer.register_step_pre_hook(lambda *_: setattr(element, "value", element.value + 1))
    optimizer.step()
    handle.remove()


def clipped(optimizer: torch.optim.Optimizer) -> None:
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1, foreach=True)


def with_closure(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step(lambda: behind_torch(optimizer.param_groups[0]["params"][0]))  # type: ignore[arg-type]


def raised(optimizer: torch.optim.Optimizer) -> None:
    def fail() -> None:
        raise ArithmeticError

    with suppress(ArithmeticError):
        optimizer.step(fail)  # type: ignore[arg-type]
    buffer = torch.ones(3)
    behind_torch(buffer)
    buffer.add_(1)


def half_a_step(optimizer: torch.optim.Optimizer) -> None:
    """Have an operator of the step raise, when others have written already."""
    parameter = optimizer.param_groups[0]["params"][-1]
    before, parameter.grad.data = parameter.grad.data, torch.ones(7)
    with suppress(RuntimeError):
        optimizer.step()
    parameter.grad.data = before
    buffer = torch.ones(3)
    behind_torch(buffer)
    buffer.add_(1)


def elsewhere(optimizer: torch.optim.Optimizer) -> None:
    in_thread(optimizer.step)


def state_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        value for values in optimizer.state.values() for value in values.values() if isinstance(value, torch.Tensor)
    ]


def each_state(write: Callable[[torch.Tensor], Any]) -> Callable[[torch.optim.Optimizer], None]:
    def work(optimizer: torch.optim.Optimizer) -> None:
        for tensor in state_of(optimizer):
            write(tensor)

    return work


def each_parameter(write: Callable[[torch.Tensor], Any]) -> Callable[[torch.optim.Optimizer], None]:
    def work(optimizer: torch.optim.Optimizer) -> None:
        for tensor in optimizer.param_groups[0]["params"]:
            write(tensor)

    return work


# What happens to an optimizer, its parameters and its state; None ends numscope's step.
EVENTS: dict[str, Callable[[torch.optim.Optimizer], None] | None] = {
    "step": stepped,
    "end": None,
    "hooked": hooked,
    "hooked before": hooked_before,
    "hooked behind": hooked_behind,
    "clipped": clipped,
    "gradients behind": each_parameter(lambda tensor: behind_torch(tensor.grad)),
    "closure": with_closure,
    "raised": raised,
    "half a step": half_a_step,
    "elsewhere": elsewhere,
    "parameters": each_parameter(lambda tensor: tensor * 2),
    "parameters in place": each_parameter(lambda tensor: tensor.mul_(0.5)),
    "parameters foreach": lambda optimizer: torch._foreach_mul_(optimizer.param_groups[0]["params"], 0.5),
    "parameters' data": each_parameter(lambda tensor: tensor.data.clamp_(-0.1, 0.1)),
    "parameters' address": each_parameter(through_address),
    "gradients": each_parameter(lambda tensor: tensor.grad.mul_(0.5)),
    "state": each_state(lambda tensor: tensor + 1),
    "state in place": each_state(lambda tensor: tensor.add_(1)),
    "state by numpy": each_state(lambda tensor: tensor.numpy().fill(0.5)),
    "state's data": each_state(lambda tensor: tensor.data.add_(1)),
    "state's address": each_state(through_address),
    "state's storage": each_state(through_storage),
    "state foreach": lambda optimizer: torch._foreach_add_(state_of(optimizer), 1) if state_of(optimizer) else None,
    "state elsewhere": each_state(lambda tensor: in_thread(lambda: tensor.add_(1))),
    "loaded": lambda optimizer: optimizer.load_state_dict(optimizer.state_dict()),
}


def train(name: str, program: list[str], **options: Any) -> None:
    def work(observer: Observer) -> None:
        parameters = [torch.nn.Parameter(torch.arange(6.0).reshape(2, 3) / 7), torch.nn.Parameter(torch.ones(3))]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.25)
        optimizer = OPTIMIZERS[name](parameters)

        def before(*_: Any) -> None:
            observer.counts["step"] += 1
            observer.see(step(), [(f"parameters.group0.{i}", p) for i, p in enumerate(parameters)])
            observer.see(step(), [(f"parameters_grad.group0.{i}", p.grad) for i, p in enumerate(parameters)])

        before.__module__ = "numscope.observer"  # no code of the user's

        def after(*_: Any) -> None:
            observer.see(step(), [(f"output.group0.{i}", p) for i, p in enumerate(parameters)])

        def step() -> str:
            return f"Optimizer.{type(optimizer).__name__}.step.{observer.counts['step'] - 1}"

        hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        try:
            for event in program:
                happens = EVENTS[event]
                if happens is None:
                    observer.counts.clear()
                    observer.end()
                else:
                    happens(optimizer)
        finally:
            for hook in hooks:
                hook.remove()

    assert_true(*run(work, **options))


@settings(max_examples=200, deadline=None)
@example("fused", ["step", "end", "hooked", "step"], 0)
@example("fused", ["step", "hooked behind", "clipped", "gradients behind", "step"], 16)
@example("fused", ["step", "state elsewhere", "elsewhere", "step"], 0)
@given(
    st.sampled_from(sorted(OPTIMIZERS)),
    st.lists(st.sampled_from(["step", "end", *sorted(EVENTS)]), max_size=12),
    st.sampled_from(LISTS),
)
def test_whatever_happens_around_an_optimizer_is_recorded_as_it_was(
    name: str, program: list[str], longest: int
) -> None:
    with patch.object(watch, "LIST", longest):
        train(name, program)


def test_a_view_is_measured_anew_when_what_it_shows_was_written(tmp_path: Path) -> None:
    x = torch.zeros(2, 3)
    with ns.capture(tmp_path / "run", None, level="aten", on_error="raise"):
        for _ in range(4):
            x.t()
            x.add_(1)
    rows = ns.open_run(tmp_path / "run").tensors.to_pylist()
    assert [row["mean"] for row in rows if row["name"].startswith("Aten.t.")] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_what_is_not_recorded_writes_all_the_same(tmp_path: Path) -> None:
    x, y, z = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    with ns.capture(tmp_path / "run", None, level="aten", exclude="Aten._foreach_*", on_error="raise") as cap:
        for _ in range(3):
            x.sin()
            torch._foreach_add_([x], 1)
            with suppress(RuntimeError):
                torch._foreach_add_([y, z], [torch.ones(()), torch.ones(7)])
            y.cos()
        cap.forward_end()
        torch._foreach_add_([x], 1)
        cap.save("x", x)
    rows = ns.open_run(tmp_path / "run").tensors.to_pylist()
    assert [row["mean"] for row in rows if ".sin." in row["name"] and "input" in row["name"]] == [0, 1, 2]
    assert [row["mean"] for row in rows if ".cos." in row["name"] and "input" in row["name"]] == [1, 2, 3]
    assert [row["mean"] for row in rows if row["name"].startswith("Save")] == [4]


@pytest.mark.parametrize("exclude", [None, "Optimizer.*"])
@pytest.mark.parametrize("level", ["mix", "aten"])
def test_the_state_of_an_optimizer_is_measured_anew_after_its_step(
    level: str, exclude: str | None, tmp_path: Path
) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=True)
    optimizer.step()
    tensors = [parameter, optimizer.state[parameter]["exp_avg"]]
    true = []
    with ns.capture(tmp_path / "run", None, level=level, exclude=exclude, on_error="raise") as cap:
        for _ in range(3):
            for tensor in tensors:
                true.append(true_hash(tensor))
                cap.save("x", tensor)
            optimizer.step()
    rows = ns.open_run(tmp_path / "run").tensors.to_pylist()
    assert [row["hash"] for row in rows if row["name"].startswith("Save")] == true


def test_methods_of_tensors_are_torchs_own_again_after_capture(tmp_path: Path) -> None:
    names = ["data", "data_ptr", "numpy", "untyped_storage", "__dlpack__", "apply_"]
    before = [vars(torch.Tensor).get(name) for name in names]
    with ns.capture(tmp_path / "run", None, level="aten", on_error="raise"):
        x = torch.ones(3)
        assert x.data.numpy().tolist() == [1, 1, 1]
        assert np.from_dlpack(x).tolist() == [1, 1, 1]
        assert torch.Tensor.data_ptr(x) == x.data_ptr()
    assert [vars(torch.Tensor).get(name) for name in names] == before
