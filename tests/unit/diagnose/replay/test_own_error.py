"""A recorded output is off where rounding does not explain it from its own inputs, and healthy kernels never are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from numscope.diagnose.recorded.step_graph import RecordedCall, StepGraph
from numscope.diagnose.replay.calls import Values, cast_floating
from numscope.diagnose.replay.own_error import OwnError, own_error

Operator = Callable[..., torch.Tensor]


@dataclass
class Tensor:
    dtype: str
    device: str = "cpu"


class Graph:
    """The part of a recorded step that own_error asks for: the inputs' data, by number, and the output's, which is number -1."""

    def __init__(self, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        self._data = {**dict(enumerate(inputs)), -1: output}
        self.tensors = {number: Tensor(str(data.dtype).removeprefix("torch.")) for number, data in self._data.items()}

    def kept(self, number: int) -> bool:
        return number in self._data

    def data(self, number: int) -> torch.Tensor:
        return self._data[number]


class Side:
    """One operator with recorded inputs, and an output that another kernel gave."""

    def __init__(self, operator: Operator, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        self._operator = operator
        self._graph = Graph(inputs, output)
        self.calls: tuple[RecordedCall, ...] = ()
        self.inputs = tuple(range(len(inputs)))
        self.output = -1

    @property
    def graph(self) -> StepGraph:
        return self._graph  # type: ignore[return-value]

    def run(self, values: Values | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        given = [(values or {}).get(number, self._graph.data(number)) for number in self.inputs]
        return self._operator(*(cast_floating(tensor, dtype) for tensor in given))


def own(operator: Operator, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> OwnError:
    found = own_error(Side(operator, inputs, output), floor=1e-7)
    assert found is not None
    return found


def lanes(a: torch.Tensor, b: torch.Tensor, count: int) -> torch.Tensor:
    """Return a product whose sums are added up in so many lanes, each from first to last."""
    terms = a[:, None, :] * b.T[None]
    rows = terms.unflatten(-1, (-1, count))
    total = torch.zeros_like(rows[..., 0, :])
    for index in range(rows.shape[-2]):
        total = total + rows[..., index, :]
    return total.sum(-1)


GENERATOR = torch.Generator().manual_seed(3)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


X, A, B, LONG_A, LONG_B = (
    normal(32, 64) * 3,
    normal(16, 64),
    normal(64, 16),
    normal(8, 2048).abs(),
    normal(2048, 8).abs(),
)


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (64,))


HEALTHY: dict[str, tuple[Operator, tuple[torch.Tensor, ...], Operator]] = {
    "product in 8 lanes": (torch.mm, (A, B), lambda a, b: lanes(a, b, 8)),
    "product of positive numbers in 16 lanes": (torch.mm, (LONG_A, LONG_B), lambda a, b: lanes(a, b, 16)),
    "gelu by its formula": (F.gelu, (X,), lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))),
    "tanh by exp": (torch.tanh, (X,), lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)),
    "silu by its formula": (F.silu, (X,), lambda x: x / (1 + torch.exp(-x))),
    "exp by exp2": (torch.exp, (X,), lambda x: torch.exp2(x * 1.4426950408889634)),
    "softmax without its maximum": (lambda x: F.softmax(x, -1), (X,), lambda x: x.exp() / x.exp().sum(-1, True)),
    "norm in one pass": (
        norm,
        (X,),
        lambda x: (x - x.mean(-1, True)) * torch.rsqrt((x * x).mean(-1, True) - x.mean(-1, True) ** 2 + 1e-5),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", list(HEALTHY))
def test_another_healthy_kernel_is_not_off(name: str, dtype: torch.dtype) -> None:
    operator, inputs, kernel = HEALTHY[name]
    given = tuple((tensor if dtype != torch.float16 else tensor / 4).to(dtype) for tensor in inputs)
    output = kernel(*(tensor.float() for tensor in given)).to(dtype) if name.startswith("product") else kernel(*given)
    found = own(operator, given, output)
    assert not found.is_off(), found
    assert not found.is_off(own(operator, given, operator(*given))), found


FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one sign": lambda y: torch.where(torch.arange(y.numel()).reshape(y.shape) == 77, -y, y),
    "a factor": lambda y: y * 0.9,
    "a column": lambda y: torch.where(torch.arange(y.shape[-1]) == 3, 0.0, y).to(y.dtype),
    "a NaN": lambda y: torch.where(torch.arange(y.numel()).reshape(y.shape) == 5, torch.nan, y).to(y.dtype),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(FAULTS))
def test_a_faulty_kernel_is_off_whether_or_not_it_is_faulty_here_too(name: str, dtype: torch.dtype) -> None:
    given = (A.to(dtype), B.to(dtype))
    right = torch.mm(*given)
    wrong = FAULTS[name](right)
    healthy = own(torch.mm, given, right)
    found = own(torch.mm, given, wrong)
    assert found.is_off(healthy)
    assert not healthy.is_off(found)
    assert not found.reproduced

    def here_too(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        made = torch.mm(a, b)
        return made if a.dtype == torch.float64 else FAULTS[name](made)

    assert own(here_too, given, wrong).is_off(own(here_too, given, right))


def test_of_whole_numbers_a_choice_that_an_ulp_turns_may_differ_and_no_other() -> None:
    x = torch.tensor([[1.0, 1.0 + 2**-23, 0.5], [3.0, 1.0, 2.0]])
    choose: Operator = lambda x: x.argmax(-1)  # noqa: E731
    assert not own(choose, (x,), torch.tensor([0, 0])).is_off()
    assert own(choose, (x,), torch.tensor([1, 2])).is_off()
