"""How two steps differ in structure, where nothing was measured."""

from __future__ import annotations

from unittest import mock

import numpy as np

from numscope.compare.judge.unmeasured import StructureDifferences, details, merged, sentence, structure_differences
from numscope.compare.load.sources import Sources
from numscope.core.report import Source
from tests.unit.compare.judge.tables import X, data, facts_of
from tests.unit.compare.scripted import Script, numbers

G = numbers((16, 64), seed=3)


def step(*, eps: float = 1e-5, extra: bool = False, rows: int = 16, dtype: type = np.float32) -> Script:
    script = data(Script(), X)
    script.call("Functional.layer_norm.0.forward", {"input.0": X}, {"output.0": G}, arguments={"eps": eps})
    if extra:
        script.call("Torch.exp.0.forward", {"input.0": G}, {"output.0": X + G})
    last = numbers((rows, 64), seed=4).astype(dtype)
    script.call("Torch.tanh.0.forward", {"input.0": G}, {"output.0": last})
    return script


def found(target: Script, reference: Script) -> StructureDifferences:
    facts = facts_of(target, reference)
    sources = mock.Mock(spec=Sources)
    sources.of.return_value = Source("/home/user/model.py", 7)
    return structure_differences(facts.a, facts.b, facts.alignment, facts.slots, facts.differences, (sources, sources))


def test_the_same_structure() -> None:
    same = found(step(), step())
    assert not any(same.counts.values())
    assert sentence(same) == "the calls, their arguments, shapes and dtypes are the same"


def test_each_way_to_differ_is_counted_and_told_in_the_order_of_running() -> None:
    differs = found(step(eps=1e-6, extra=True, rows=8), step(dtype=np.float16))
    assert differs.counts == {"arguments": 1, "unmatched": 1, "shapes": 1, "dtypes": 1}
    assert [one.aspect for one in differs.first] == ["arguments", "unmatched", "dtypes", "shapes"]
    assert differs.first[0].reason == "layer_norm: argument eps 1e-06 against 1e-05; model.py:7"
    assert differs.first[1].reason == "exp: only the target has this call; model.py:7"
    assert differs.first[2].reason == "tanh: output.0 is float32, the reference's float16; model.py:7"
    assert differs.first[3].reason == "tanh: output.0 is [8, 64], the reference's [16, 64]; model.py:7"
    assert sentence(differs).startswith("1 call differs in its arguments, 1 is on one side only")


def test_a_call_of_the_reference_alone_is_told_by_its_own_name() -> None:
    (one,) = found(step(), step(extra=True)).first
    assert (one.call, one.reference_call) == ("", "Torch.exp.0.forward")


def test_the_differences_of_several_steps_add_up() -> None:
    one, two = found(step(eps=1e-6), step()), found(step(eps=1e-6, extra=True), step())
    both = merged([one, None, two])
    assert both.counts == {"arguments": 2, "unmatched": 1, "shapes": 0, "dtypes": 0}
    assert sentence(both).startswith(
        "2 calls differ in their arguments, 1 is on one side only; look first at layer_norm"
    )
    told = details(both)
    assert told["arguments"] == 2
    assert len(both.first) == 3
