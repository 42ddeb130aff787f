"""Which calls belong together: by path, by sequence, by value, and through their forward calls."""

from __future__ import annotations

import numpy as np

from numscope.compare.align.alignment import align
from numscope.compare.align.pairing import FORWARD, PATH, RECOMPUTE, VALUE
from numscope.compare.load.side import Codebook
from tests.unit.compare.scripted import Script, numbers


def names(a: Script, b: Script) -> dict[str, str]:
    book = Codebook()
    left, right = a.side(book), b.side(book)
    found = align(left, right)
    return {left.calls.name(t): right.calls.name(r) for t, r in zip(found.target, found.reference)}


def block(script: Script, path: str, x: np.ndarray, extra: bool = False, scale: float = 1.0) -> np.ndarray:
    outer = script.call(f"Module.{path}.Block.forward.0", {"input.0": x}, module=path, module_class="Block")
    out = np.tanh(x) * np.float32(scale)
    number = sum(call["name"].startswith("Functional.linear") for call in script.calls)
    script.call(f"Functional.linear.{number}.forward", {"input.0": x}, {"output.0": out}, module=path, parent=outer)
    if extra:
        again = out * np.float32(2)
        script.call("Tensor.mul.0.forward", {"input.0": out}, {"output.0": again}, module=path, parent=outer)
        out = again
    return out


def test_an_index_that_an_inserted_call_has_shifted_does_not_matter() -> None:
    a, b = Script(), Script()
    x = numbers()
    a.call("Functional.linear.0.forward", {"input.0": numbers(seed=9)}, {"output.0": numbers(seed=8)})
    for script in (a, b):
        block(script, "blocks.1", block(script, "blocks.0", x))
    found = names(a, b)
    assert found["Functional.linear.1.forward"] == "Functional.linear.0.forward"
    assert found["Functional.linear.2.forward"] == "Functional.linear.1.forward"
    assert "Functional.linear.0.forward" not in found


def test_wrappers_are_looked_through() -> None:
    a, b = Script(), Script()
    x = numbers()
    top = a.call("Module.DistributedDataParallel.forward.0", {"input.0": x}, module_class="DistributedDataParallel")
    outer = a.call("Module.module.Net.forward.0", {"input.0": x}, module="module", module_class="Net", parent=top)
    path = "module._orig_mod.up"
    a.call(f"Module.{path}.Linear.forward.0", {"input.0": x}, module=path, module_class="Linear", parent=outer)
    outer = b.call("Module.Net.forward.0", {"input.0": x}, module_class="Net")
    b.call("Module.up.Linear.forward.0", {"input.0": x}, module="up", module_class="Linear", parent=outer)
    assert names(a, b) == {
        "Module.module.Net.forward.0": "Module.Net.forward.0",
        f"Module.{path}.Linear.forward.0": "Module.up.Linear.forward.0",
    }


def test_a_module_that_only_one_side_has_is_opened() -> None:
    a, b = Script(), Script()
    x = numbers()
    out = np.exp(x)
    inner = a.call("Module.act.Act.forward.0", {"input.0": x}, module="act", module_class="Act")
    a.call("Torch.exp.0.forward", {"input.0": x}, {"output.0": out}, module="act", parent=inner)
    b.call("Tensor.exp.0.forward", {"input.0": x}, {"output.0": out})
    assert names(a, b) == {"Torch.exp.0.forward": "Tensor.exp.0.forward"}


def test_modules_that_changed_places_are_paired_by_path() -> None:
    a, b = Script(), Script()
    x = numbers()
    for script, order in ((a, "qkv"), (b, "vqk")):
        for name in order:
            script.call(f"Module.{name}.Linear.forward.0", {"input.0": x}, module=name, module_class="Linear")
    assert all(target == reference for target, reference in names(a, b).items())
    assert len(names(a, b)) == 3


def test_more_calls_of_a_loop_on_one_side_stay_alone() -> None:
    a, b = Script(), Script()
    for script, times in ((a, 5), (b, 3)):
        for turn in range(times):
            script.call(f"Module.Net.forward.{turn}", {"input.0": numbers(seed=turn)}, module_class="Net")
    assert names(a, b) == {f"Module.Net.forward.{turn}": f"Module.Net.forward.{turn}" for turn in range(3)}


def test_a_fused_call_is_paired_with_the_last_of_those_it_replaces_by_value() -> None:
    a, b = Script(), Script()
    x, weight = numbers(), numbers((16, 16), seed=1)
    product = x @ weight
    total = product + np.float32(1)
    a.call("Functional.linear.0.forward", {"input.0": x, "input.1": weight}, {"output.0": total})
    b.call("Torch.matmul.0.forward", {"input.0": x, "input.1": weight}, {"output.0": product})
    b.call("Tensor.add.0.forward", {"input.0": product}, {"output.0": total * np.float32(1.0000001)})
    book = Codebook()
    left, right = a.side(book), b.side(book)
    found = align(left, right)
    assert right.calls.name(found.reference[0]) == "Tensor.add.0.forward"
    assert found.why.tolist() == [VALUE]
    assert len(found.alone_reference) == 1


def test_backward_calls_follow_their_forward_calls_in_whatever_order_they_run() -> None:
    a, b = Script(), Script()
    for script, order in ((a, (0, 1)), (b, (1, 0))):
        rows = [script.call(f"Functional.gelu.{i}.forward", {"input.0": numbers(seed=i)}) for i in (0, 1)]
        for i in order:
            script.call(f"Functional.gelu.{i}.backward", {"input.0": numbers(seed=9)}, forward=rows[i])
    assert all(target == reference for target, reference in names(a, b).items())
    book = Codebook()
    assert FORWARD in align(a.side(book), b.side(book)).why


def test_a_second_execution_is_compared_with_the_first_where_the_other_side_has_no_checkpoint() -> None:
    a, b = Script(), Script()
    x = numbers()
    for script in (a, b):
        script.call("Functional.dropout.0.forward", {"input.0": x}, {"output.0": x * np.float32(2)}, module="drop")
    a.call("Functional.dropout.0.forward", {"input.0": x}, {"output.0": x}, module="drop", forward=0, recompute=True)
    book = Codebook()
    found = align(a.side(book), b.side(book))
    assert found.why.tolist()[-1] == RECOMPUTE
    assert len(found.alone_target) == len(found.alone_reference) == 0


def test_paths_are_the_reason_for_modules() -> None:
    a, b = Script(), Script()
    for script in (a, b):
        block(script, "blocks.0", numbers())
    book = Codebook()
    assert PATH in align(a.side(book), b.side(book)).why


def test_a_call_inserted_into_each_of_many_modules_shifts_nothing() -> None:
    a, b = Script(), Script()
    x = y = numbers()
    for layer in range(20):
        x, y = block(a, f"blocks.{layer}", x, extra=True), block(b, f"blocks.{layer}", y)
    found = names(a, b)
    assert len(found) == 40
    assert all(f"linear.{layer}.f" in found[f"Functional.linear.{layer}.forward"] for layer in range(20))


def test_optimizers_of_another_class_are_paired_by_the_parameters_they_update() -> None:
    a, b = Script(), Script()
    weight, other = numbers(), numbers(seed=2)
    for script, first, second in ((a, "SGD", "Adam"), (b, "AdamW", "RMSprop")):
        places = (("one.weight", weight), ("two.weight", other))
        for name, (label, value) in zip((first, second), places if script is a else places[::-1]):
            slots = {f"parameters.{label}": value}
            script.call(f"Optimizer.{name}.step.0", slots, {f"output.{label}": value + 1})
    assert names(a, b) == {
        "Optimizer.SGD.step.0": "Optimizer.RMSprop.step.0",
        "Optimizer.Adam.step.0": "Optimizer.AdamW.step.0",
    }


def test_a_cast_that_changes_nothing_does_not_stand_for_a_call_that_computes() -> None:
    a, b = Script(), Script()
    x, logs = numbers(), np.log(np.abs(numbers()) + 1)
    loss = np.float32([1.5])
    a.call("Functional.log_softmax.0.forward", {"input.0": x}, {"output.0": logs})
    a.call("Functional.nll_loss.0.forward", {"input.0": logs}, {"output.0": loss})
    b.call("Tensor.float.0.forward", {"input.0": x}, {"output.0": x})
    b.call("Functional.cross_entropy.0.forward", {"input.0": x}, {"output.0": loss})
    assert "Functional.log_softmax.0.forward" not in names(a, b)
