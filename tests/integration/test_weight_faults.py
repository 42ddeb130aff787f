"""Planted faults of weights: each is named, of the tensor that it was planted in, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import save_file

import numscope as ns
from tests.integration.weight_faults import FAULTS, Fault, dense, sparse


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.name)
def test_a_planted_fault_is_named(case: Fault, tmp_path: Path) -> None:
    suspect, reference = case.plant()
    save_file(reference, tmp_path / "b.safetensors")
    answer = ns.weights(suspect, tmp_path / "b.safetensors", earlier=[case.earlier()] if case.earlier else ())
    assert answer.verdict == case.verdict, answer.reason
    if case.fault in ("missing", "extra"):
        assert list(case.tensors) == list(getattr(answer, case.fault))
        assert not answer.wrong
        return
    pairs = {name: pair for pair in answer.pairs for name in pair.a}
    for name in case.tensors:
        assert pairs[name].fault == case.fault, pairs[name]
    for words in case.says:
        assert words in pairs[case.tensors[0]].reason
    assert {pair.fault for pair in answer.pairs if pair.verdict == "diverged"} <= {case.fault}


@pytest.mark.parametrize("state", [dense(), dense(dtype="bfloat16"), sparse()], ids=["dense", "bfloat16", "experts"])
def test_the_same_weights_are_identical_and_no_fault_is_named(state: dict) -> None:
    answer = ns.weights({name: value.copy() for name, value in state.items()}, state)
    assert answer.verdict == "identical"
    assert not any(pair.fault for pair in answer.pairs)
