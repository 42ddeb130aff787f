"""The ways to write to a weight, told and untold: each takes a model whose first layer is `a`, with 20 numbers."""

import ctypes
import itertools
from contextlib import suppress
from typing import Any

import torch


def held_alias(model: Any) -> None:
    model.held.mul_(2.0)  # type: ignore[operator]


def through_numpy(model: Any) -> None:
    model.a.weight.detach().numpy()[:] = 3.0


def through_storage(model: Any) -> None:
    model.a.weight.untyped_storage().copy_(torch.full((20,), 4.0).untyped_storage())


def in_place(model: Any) -> None:
    with torch.no_grad():
        model.a.weight.mul_(2.0)


def by_function(model: Any) -> None:
    with torch.no_grad():
        model.a.weight.detach().apply_(lambda value: value + 1.0)


def loaded(model: Any) -> None:
    model.load_state_dict({name: value + 1.0 for name, value in model.state_dict().items()})


def other_data(model: Any) -> None:
    model.a.weight.data = torch.zeros(5, 4)


def another_form(model: Any) -> None:
    weight = model.a.weight.data  # the same memory in another order
    model.a.weight.data = weight.as_strided((5, 4), (1, 5) if weight.is_contiguous() else (4, 1))


def another_form_in_place(model: Any) -> None:
    with torch.no_grad():
        model.a.weight.as_strided_((5, 4), (1, 5) if model.a.weight.is_contiguous() else (4, 1))


def by_fused_kernel(model: Any) -> None:
    parameter = model.a.weight.detach()
    state = [torch.zeros(5, 4) for _ in range(2)]
    numbers: Any = {"lr": 0.5, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False}
    steps = [torch.ones(())]
    with torch.no_grad():
        torch._fused_adamw_(
            [parameter],
            [torch.ones(5, 4)],
            state[:1],
            state[1:],
            [],
            steps,
            **numbers,
            maximize=False,
            grad_scale=None,
            found_inf=None,
        )


def after_an_optimizer_that_raised(model: Any) -> None:
    def fail() -> None:
        raise ArithmeticError

    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    with suppress(ArithmeticError):
        other.step(fail)  # type: ignore[arg-type]
    model.a.weight.data.copy_(torch.full((5, 4), 7.0))


def raw_write(address: int, count: int = 20, value: float | None = None) -> None:
    """Write as a kernel of others does: no call of torch's, no version. Without a value, one that is new each time."""
    (ctypes.c_float * count).from_address(address)[:] = [next(_VALUES) if value is None else value] * count


def _operator() -> Any:
    if not _LIBRARY:
        library = torch.library.Library("numscope_settled", "DEF")
        library.define("write(Tensor(a!) x, int address) -> ()")
        library.impl("write", lambda _, address: raw_write(address), "CPU")
        _LIBRARY.append(library)
    return torch.ops.numscope_settled.write


def by_an_operator(model: Any) -> None:
    with torch.no_grad():
        _operator()(model.a.weight, ADDRESSES[id(model)])


def by_an_overload(model: Any) -> None:
    with torch.no_grad():
        _operator().default(x=model.a.weight, address=ADDRESSES[id(model)])


def by_an_autograd_function(model: Any) -> None:
    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weights: Any, address: int) -> torch.Tensor:
            raw_write(address)
            return torch.zeros(())

    Writes.apply([model.a.weight], ADDRESSES[id(model)])
    Writes.apply(model.a.weight, ADDRESSES[id(model)])


def by_a_compiled_region(model: Any) -> None:
    def backend(graph: Any, _: Any) -> Any:
        def run(*args: Any) -> Any:
            raw_write(ADDRESSES[id(model)])
            return graph(*args)

        return run

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    torch.compiler.reset()


def with_its_version_put_back(model: Any) -> None:
    with torch.autograd._unsafe_preserve_version_counter(model.a.weight), torch.no_grad():
        model.a.weight.fill_(next(_VALUES))


ADDRESSES: dict[int, int] = {}  # of a model's first weight, known since before the capture
_VALUES = itertools.count(1.0, 0.5)
_LIBRARY: list[Any] = []

WRITES = {
    "an operator of others": by_an_operator,
    "an overload of one": by_an_overload,
    "an autograd.Function": by_an_autograd_function,
    "a compiled region": by_a_compiled_region,
    "its version put back": with_its_version_put_back,
    "data": lambda model: model.a.weight.data.clamp_(-0.01, 0.01),
    "a view that is held": held_alias,
    "numpy": through_numpy,
    "a storage": through_storage,
    "in place": in_place,
    "a function for each element": by_function,
    "a checkpoint": loaded,
    "other data": other_data,
    "another form": another_form,
    "another form, in place": another_form_in_place,
    "a fused kernel": by_fused_kernel,
    "unseen after a fault": after_an_optimizer_that_raised,
}
