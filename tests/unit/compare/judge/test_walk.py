"""The order of judging, data, and the end of a step."""

from __future__ import annotations

from numscope.compare.judge.findings import History
from tests.unit.compare.judge.tables import Array, W, X, chain, data, judged, off
from tests.unit.compare.scripted import Script, numbers

G, H = numbers((16, 64), seed=3), numbers((16, 64), seed=4)


def test_identical_sides_have_no_findings() -> None:
    """| identical | all its tensors are the same to the bit |"""
    found = judged(chain(("Torch.tanh", G)), chain(("Torch.tanh", G)))
    assert found.findings == []
    assert found.verdict("Torch.tanh.0.forward") == "identical"


def test_rounding_is_equivalent() -> None:
    """| equivalent | it differs, and rounding explains the difference |"""
    found = judged(chain(("Torch.tanh", off(G, 1e-7))), chain(("Torch.tanh", G)))
    assert found.verdict("Torch.tanh.0.forward") == "equivalent"
    assert found.history.noise > 0


def test_calls_are_judged_in_the_order_of_the_target() -> None:
    """Calls are judged in the order in which the target ran them; a call with inner calls is judged after those."""
    target = chain(("Torch.exp", off(H, 1e-2)), ("Torch.tanh", off(G, 1e-2)))
    found = judged(target, chain(("Torch.exp", H), ("Torch.tanh", G)))
    assert found.named() == "Torch.exp.0.forward"


def nested(error: float, align: bool = False) -> Script:
    """A function around its kernel, in a module."""
    script = data(Script(), X)
    made = off(G, error) if error else G
    outer = script.call("Module.up.Up.forward.0", {"input.0": X}, {"output.0": made}, module="up", module_class="Up")
    function = script.call(
        "Functional.interpolate.0.forward",
        {"input.0": X},
        {"output.0": made},
        module="up",
        parent=outer,
        arguments={"align_corners": align},
    )
    kernel = "Aten.upsample_bilinear2d.0.forward"
    script.call(kernel, {"input.0": X}, {"output.0": made}, module="up", parent=function, kind="aten")
    return script


def test_a_function_around_its_kernel_is_named() -> None:
    """Where an inner call of a function is wrong and the function's own arguments differ, the function is named:
    `interpolate(align_corners=…)`, not the kernel that it chose."""
    found = judged(nested(1e-2, True), nested(0.0, False))
    assert found.named() == "Functional.interpolate.0.forward"
    assert found.verdict("Aten.upsample_bilinear2d.0.forward") == "inherited"


def test_the_calls_around_an_origin_follow_from_it() -> None:
    found = judged(nested(1e-2), nested(0.0))
    assert found.named() == "Aten.upsample_bilinear2d.0.forward"
    assert found.verdict("Functional.interpolate.0.forward") == "inherited"
    assert found.verdict("Module.up.Up.forward.0") == "inherited"


def test_data_of_a_later_step_is_inherited() -> None:
    """The first step that is off has the origin; what follows is inherited, however large it grows."""
    history = History(started=True, diverged=True)
    found = judged(chain(("Torch.tanh", off(G, 0.5)), given=off(X, 0.5)), chain(("Torch.tanh", G)), history)
    assert found.findings == []
    assert found.verdict("Data.Net.0.input") == "inherited"
    assert found.verdict("Torch.tanh.0.forward") == "inherited"


def test_a_call_that_one_side_alone_has_is_no_fault_by_itself() -> None:
    """| unmatched | only one run has it; that alone is no fault |"""
    script = chain(("Torch.tanh", G))
    script.call("Torch.exp.0.forward", {"input.0": G}, {"output.0": H})
    assert judged(script, chain(("Torch.tanh", G))).findings == []


def test_findings_are_in_the_order_of_running() -> None:
    def script(error: float) -> Script:
        made = data(Script(), X, W)
        outputs: list[tuple[Array, Array]] = [(X, G), (W, H)]
        for number, (given, output) in enumerate(outputs):
            spoilt = off(output, error / (number + 1)) if error else output
            made.call(f"Torch.tanh.{number}.forward", {"input.0": given}, {"output.0": spoilt})
        return made

    found = judged(script(1e-2), script(0.0))
    assert [one.target for one in found.findings] == [2, 3]


def test_nothing_is_known_of_pairs_of_which_nothing_was_measured() -> None:
    found = judged(chain(("Torch.tanh", G[:8])), chain(("Torch.tanh", G)))
    assert found.judgement.unmeasured.tolist() == [False, True]
    assert found.judgement.unmeasured_slots.tolist() == [False, False, True]
