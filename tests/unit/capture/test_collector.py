"""Python's collector is left as it was found."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import numscope as ns
from numscope.capture.collector import make_room, rarer_walks


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_walks_are_rarer_until_the_last_one_stops() -> None:
    gc.set_threshold(700, 10, 10)
    first, second = rarer_walks(), rarer_walks()
    assert gc.get_threshold()[1] == 10
    assert gc.get_threshold()[0] > 700
    assert gc.get_threshold()[2] > 10
    first()
    assert gc.get_threshold()[0] > 700
    assert gc.get_threshold()[2] > 10
    second()
    assert gc.get_threshold() == (700, 10, 10)


def test_objects_of_our_own_bring_no_walk_nearer_and_the_thresholds_come_back() -> None:
    gc.set_threshold(700, 10, 10)
    make_room(5000)
    assert gc.get_threshold() == (700, 10, 10)
    undo = rarer_walks()
    young = gc.get_threshold()[0]
    make_room(5000)
    assert gc.get_threshold()[0] >= young + 5000
    room = gc.get_threshold()
    make_room(3000)
    assert gc.get_threshold() == room
    undo()
    assert gc.get_threshold() == (700, 10, 10)


def test_thresholds_that_the_job_has_set_meanwhile_stay() -> None:
    undo = rarer_walks()
    gc.set_threshold(1000, 20, 30)
    make_room(10_000)
    assert gc.get_threshold() == (1000, 20, 30)
    undo()
    assert gc.get_threshold() == (1000, 20, 30)


def test_a_collector_without_full_walks_is_left_alone() -> None:
    gc.set_threshold(700, 10, 0)
    undo = rarer_walks()
    assert gc.get_threshold() == (700, 10, 0)
    undo()
    assert gc.get_threshold() == (700, 10, 0)


def test_a_guard_leaves_the_collector_as_it_was() -> None:
    torch = pytest.importorskip("torch")
    before = gc.get_threshold()
    model = torch.nn.Linear(2, 2)
    with ns.guard(model, record=None):
        model(torch.ones(1, 2))
    assert gc.get_threshold() == before
