"""Where tensors came from."""

from __future__ import annotations

import numpy as np

from numscope.compare.judge.paths.dataflow import Flow, flow, leads_to, region
from numscope.compare.load.side import Codebook
from tests.unit.compare.judge.tables import W, X, chain, data, facts_of
from tests.unit.compare.scripted import Script, numbers

G, H = numbers((16, 64), seed=3), numbers((16, 64), seed=4)


def flow_of(script: Script) -> Flow:
    return flow(script.side(Codebook()))


def test_the_first_call_that_has_a_tensor_as_output_made_it() -> None:
    script = chain(("Torch.tanh", G), ("Torch.exp", H))
    script.call("Torch.getitem.0.forward", {"input.0": X}, {"output.0": G})
    assert flow_of(script).producer.tolist() == [0, 1, 2]


def test_among_nested_calls_the_inner_one_made_it() -> None:
    script = data(Script(), X)
    outer = script.call("Module.act.Tanh.forward.0", {"input.0": X}, {"output.0": G}, module="act")
    script.call("Torch.tanh.0.forward", {"input.0": X}, {"output.0": G}, parent=outer)
    assert flow_of(script).producer.tolist() == [0, 2]


def test_a_call_that_returns_its_input_did_not_make_it() -> None:
    script = Script()
    script.call("Torch.contiguous.0.forward", {"input.0": X}, {"output.0": X})
    assert flow_of(script).producer.tolist() == [-1]


def test_a_tensor_that_nothing_made_is_the_one_of_the_same_bits_made_before() -> None:
    """A tensor that nothing recorded made is taken for one of the same bits that a call made before: a collective that
    writes into its argument leaves no other trace."""
    script = chain(("Torch.tanh", G))
    script.call("Torch.exp.0.forward", {"input.0": G.copy()}, {"output.0": H})
    found = flow_of(script)
    assert found.producer.tolist() == [0, 1, 1, 2]
    assert found.same.tolist() == [0, 1, 1, 3]
    assert found.inputs(2) == [1]
    assert found.outputs(2) == [3]


def test_zeros_are_no_content_to_be_known_by() -> None:
    zero = np.zeros((16, 64), np.float32)
    script = chain(("Torch.tanh", zero))
    script.call("Torch.exp.0.forward", {"input.0": zero.copy()}, {"output.0": H})
    assert flow_of(script).producer.tolist() == [0, 1, -1, 2]


def branches() -> Script:
    """X → tanh → exp; W, which nothing made, joins in add."""
    script = chain(("Torch.tanh", G), ("Torch.exp", H))
    script.call("Torch.add.0.forward", {"input.0": H, "input.1": W}, {"output.0": G + H})
    return script


def test_a_region_is_everything_between_a_tensor_and_the_nearest_that_corresponding_calls_made() -> None:
    """The others form a region: everything between the tensor in question and the nearest tensors that corresponding calls
    made."""
    found = flow_of(branches())
    partner = np.array([0, 1, -1, -1])  # data and tanh correspond
    part = region(found, 4, partner)
    assert part.calls == (2, 3)
    assert part.frontier == (1,)  # what tanh made
    assert part.sources == (3,)
    assert part.entrance == (1, 3)


def test_a_region_ends_at_given_tensors() -> None:
    part = region(flow_of(branches()), 4, np.full(4, -1), frozenset({2}))
    assert part.calls == (3,)
    assert part.frontier == (2,)


def test_what_a_call_made_leads_to_those_that_use_it() -> None:
    found = flow_of(branches())
    assert leads_to(found, 1, frozenset({3}))
    assert leads_to(found, 3, frozenset({3}))
    assert not leads_to(found, 3, frozenset({1}))


def test_sources_of_other_shapes_and_values_are_not_the_same_tensor() -> None:
    def script(weight: np.ndarray) -> Script:
        made = data(Script(), X)
        made.call("Torch.add.0.forward", {"input.0": X, "input.1": weight}, {"output.0": G})
        return made

    facts = facts_of(script(numbers((16, 1), seed=6)), script(numbers((1, 64), seed=7)))
    assert [facts.slot(row) for row in np.flatnonzero(facts.unrelated_sources)] == ["input.1"]
    assert not facts_of(script(numbers((1, 64), seed=6)), script(numbers((1, 64), seed=7))).unrelated_sources.any()
