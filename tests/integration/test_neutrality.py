"""Capture changes nothing: loss, gradients, parameters, optimizer state and random state are the same to the bit."""

import pytest
import torch

import numscope as ns
from tests.integration.models import CASES, same, state_of

STEPS = 3


def train(build, capture=None):
    torch.manual_seed(7)
    model, optimizer, step = build()
    losses = []
    gradients = []

    def watch(gradient):
        gradients.append(gradient.to_dense().clone() if gradient.is_sparse else gradient.clone())

    if capture is None:
        handles = [p.register_hook(watch) for p in model.parameters()]
        losses = [step(index) for index in range(STEPS)]
    else:
        with capture(model) as cap:
            handles = [p.register_hook(watch) for p in model.parameters()]
            for index in range(STEPS):
                losses.append(step(index))
                cap.step()
    for handle in handles:
        handle.remove()
    return {**state_of(model, optimizer), **{f"loss {i}": v for i, v in enumerate(losses)}}, gradients


@pytest.fixture(scope="module")
def plain():
    known = {}

    def of(name):
        if name not in known:
            known[name] = train(CASES[name])
        return known[name]

    return of


@pytest.mark.parametrize("keep", ["structure", "stats", "sample", "tensors"])
@pytest.mark.parametrize("level", ["module", "api", "mix", "aten"])
@pytest.mark.parametrize("case", CASES)
def test_training_is_the_same_to_the_bit(case, level, keep, plain, tmp_path):
    expected, expected_gradients = plain(case)
    run = tmp_path / "run"
    got, got_gradients = train(
        CASES[case], lambda model: ns.capture(run, model, level=level, keep=keep, on_error="raise")
    )
    differing = [name for name, value in expected.items() if not same(value, got[name])]
    assert differing == []
    assert len(got_gradients) == len(expected_gradients)
    assert all(same(a, b) for a, b in zip(expected_gradients, got_gradients))
    assert ns.open_run(run).steps == list(range(STEPS))
