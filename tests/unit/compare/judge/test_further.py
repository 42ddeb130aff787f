"""Faults behind the first one."""

from __future__ import annotations

import numpy as np

from numscope.compare.judge.findings import Weight
from tests.unit.compare.judge.tables import W, X, data, judged
from tests.unit.compare.scripted import Script


def two(factor: float, slope: float, extra: bool = False) -> Script:
    """A product that is off by a factor, an activation with an argument, and perhaps a call that one side alone has."""
    script = data(Script(), X)
    product = X @ W * np.float32(factor)
    script.call("Torch.matmul.0.forward", {"input.0": X, "input.1": W}, {"output.0": product})
    active = np.where(product > 0, product, product * np.float32(slope))
    given = {"input.0": product}
    script.call("Functional.leaky_relu.0.forward", given, {"output.0": active}, arguments={"negative_slope": slope})
    if extra:
        shifted = active + np.float32(3)
        script.call("Tensor.add.0.forward", {"input.0": active}, {"output.0": shifted})
        active = shifted
    script.call("Torch.tanh.0.forward", {"input.0": active}, {"output.0": np.tanh(active)})
    return script


def named(target: Script, reference: Script) -> list[tuple[str, Weight]]:
    found = judged(target, reference)
    return [(found.facts.a.calls.name(one.target), one.weight) for one in found.findings]


def test_a_call_that_is_asked_for_something_else_is_named_behind_another_fault() -> None:
    """Behind an origin, calls whose arguments ask for something else are told, after all that is proven."""
    assert named(two(1.01, 0.2), two(1.0, 0.1)) == [
        ("Torch.matmul.0.forward", Weight.PROVEN),
        ("Functional.leaky_relu.0.forward", Weight.AFTER_ANOTHER),
    ]


def test_a_call_of_one_side_alone_is_named_where_the_error_grows_by_it() -> None:
    """So are calls that one side alone has, where the error behind them is more than 8 times the one before them."""
    assert named(two(1.01, 0.1, extra=True), two(1.0, 0.1))[1:] == [("Tensor.add.0.forward", Weight.AFTER_ANOTHER)]


def test_one_fault_is_one_suspect() -> None:
    assert len(named(two(1.01, 0.1), two(1.0, 0.1))) == 1


def test_another_operator_in_the_same_place_is_named_however_much_came_in() -> None:
    """So is another operator in the place of the reference's, unless the same two agree elsewhere."""

    def script(factor: float, name: str, *, beside: bool = False) -> Script:
        made = data(Script(), X)
        if beside:  # the same two operators, given the same: they agree
            made.call(f"Functional.{name}.0.forward", {"input.0": X}, {"output.0": np.tanh(X)})
        product = X @ W * np.float32(factor)
        made.call("Torch.matmul.0.forward", {"input.0": X, "input.1": W}, {"output.0": product})
        active = np.maximum(product, 0) if name == "relu" and not beside else np.tanh(product)
        number = int(beside)
        made.call(f"Functional.{name}.{number}.forward", {"input.0": product}, {"output.0": active})
        made.call("Torch.exp.0.forward", {"input.0": active}, {"output.0": np.exp(active)})
        return made

    origin = ("Torch.matmul.0.forward", Weight.PROVEN)
    found = named(script(2.0, "relu"), script(1.0, "tanh"))
    assert found == [origin, ("Functional.relu.0.forward", Weight.AFTER_ANOTHER)]
    assert named(script(2.0, "hardtanh", beside=True), script(1.0, "tanh", beside=True)) == [origin]


def test_another_whole_number_is_named_where_no_shape_differs() -> None:
    """So is a call that is given another whole number though all shapes are the same: -1 and 1 are one axis of two."""

    def script(factor: float, **arguments: int) -> Script:
        made = data(Script(), X)
        product = X @ W * np.float32(factor)
        made.call("Torch.matmul.0.forward", {"input.0": X, "input.1": W}, {"output.0": product})
        given = {"input.0": product}
        made.call("Torch.cumsum.0.forward", given, {"output.0": np.cumsum(product, 1)}, arguments=arguments)
        return made

    assert len(named(script(2.0, dim=0), script(1.0, dim=1))) == 2
    assert len(named(script(2.0, dim=-1), script(1.0, dim=1))) == 1
