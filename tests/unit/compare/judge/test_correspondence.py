"""Which pairs of calls do the same job."""

from __future__ import annotations

import numpy as np

from tests.unit.compare.judge.tables import Array, W, X, data, facts_of
from tests.unit.compare.scripted import Script, numbers


def scaled(name: str = "Tensor.mul", **given: Array) -> Script:
    """Data, and one call with another input, an argument or neither."""
    script = data(Script(), X)
    script.call(f"{name}.0.forward", {"input.0": X, **given}, {"output.0": X * np.float32(2)})
    return script


def scaled_by_number(value: float) -> Script:
    script = data(Script(), X)
    script.call("Tensor.mul.0.forward", {"input.0": X}, {"output.0": X * np.float32(2)}, arguments={"other": value})
    return script


def test_calls_of_one_operator_with_inputs_of_the_same_sizes_correspond() -> None:
    """Two calls correspond if they are paired, are one operator (or a map file names them), and are given the same number
    of tensors, of the same sizes; a backward call does if its forward call does."""
    assert facts_of(scaled(), scaled()).corresponding.all()


def test_a_tensor_that_one_side_alone_is_given_parts_a_pair() -> None:
    assert not facts_of(scaled(**{"input.1": W}), scaled()).corresponding[1]


def test_a_number_and_a_tensor_of_one_element_are_compared_as_numbers() -> None:
    """A number and a tensor of one element are compared as numbers, to a millionth."""
    two = np.array([2.0], np.float32)
    same = facts_of(scaled(**{"kwargs.other": two}), scaled_by_number(2.0))
    assert same.corresponding[1]
    assert same.argument_differences(1) == []
    other = facts_of(scaled(**{"kwargs.other": two}), scaled_by_number(2.5))
    assert other.corresponding[1]
    assert other.has_telling_arguments(1)
    assert [str(one) for one in other.argument_differences(1)] == ["other 2.0 against 2.5"]


def test_backward_of_calls_that_do_different_jobs_does_not_correspond() -> None:
    """A backward call does if its forward call does."""

    def with_backward(script: Script) -> Script:
        script.call("Tensor.mul.0.backward", {"input.0": W}, {"output.0": W * np.float32(2)}, forward=1)
        return script

    facts = facts_of(with_backward(scaled(**{"input.1": W})), with_backward(scaled()))
    assert facts.corresponding.tolist() == [True, False, False]


def test_backward_is_held_to_the_arguments_of_its_forward_call() -> None:
    """Backward is held to the arguments of its forward call."""

    def script(p: float) -> Script:
        made = data(Script(), X)
        made.call("Functional.gelu.0.forward", {"input.0": X}, {"output.0": X}, arguments={"approximate": p})
        made.call("Functional.gelu.0.backward", {"input.0": W}, {"output.0": W}, forward=1)
        return made

    facts = facts_of(script(0.5), script(0.25))
    assert facts.argument_differences(2) == facts.argument_differences(1) != []


def test_integers_are_shown_but_prove_nothing() -> None:
    """Integers are shown but prove nothing: what sizes, dims and indexes change shows in shapes and values."""

    def script(dim: int) -> Script:
        made = data(Script(), X)
        made.call("Torch.softmax.0.forward", {"input.0": X}, {"output.0": X}, arguments={"dim": dim})
        return made

    facts = facts_of(script(0), script(1))
    assert facts.argument_differences(1)
    assert not facts.has_telling_arguments(1)


def test_a_parameter_that_the_other_side_has_elsewhere_parts_a_pair() -> None:
    """A call that is given a parameter of another name or shape than its counterpart, which the other side has elsewhere
    (a query's projection here, the output's there), does something else: it is judged by where it leads."""

    def script(first: Array, second: Array) -> Script:
        made = data(Script(), X)
        for path, weight in (("query", first), ("out", second)):
            module = made.call(
                f"Module.{path}.Linear.forward.0", {"input.0": X, "parameters.weight": weight}, module=path
            )
            made.call(
                "Functional.linear.0.forward",
                {"input.0": X, "input.1": swap if path == "query" else weight},
                {"output.0": X @ weight},
                parent=module,
                module=path,
            )
        return made

    query, out = W, numbers((64, 64), seed=9)
    swap = query
    reference = script(query, out)
    swap = out
    facts = facts_of(script(query, out), reference)
    pairs = [facts.target_name(pair) for pair in range(len(facts.alignment.target))]
    parted = [name for name, same in zip(pairs, facts.corresponding.tolist()) if not same]
    assert parted == ["Functional.linear.0.forward"]
