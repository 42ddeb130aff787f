"""A list of tensors is treated at once as each of them would be, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numscope.capture.recording.recorder import Recorder
from numscope.capture.torch.identity.tensors import KnownById, Tensors
from numscope.fingerprint.torch_form import TorchBatch

CONJUGATE = torch.randn(3, dtype=torch.complex64).conj()
MAKERS: list[Callable[[], torch.Tensor]] = [
    lambda: torch.randn(3, 4),
    lambda: torch.randn(4, 3).t(),
    lambda: torch.randn(6)[1:4],
    lambda: torch.nn.Parameter(torch.randn(5)),
    lambda: torch.tensor(2.0),
    lambda: torch.zeros(0),
    lambda: torch.arange(4),
    lambda: CONJUGATE,
    lambda: CONJUGATE.imag,
]


class Job:
    """The tensors of a step, and the rows that are made of them."""

    def __init__(self, measures: bool) -> None:
        self.recorder = Recorder(None, TorchBatch() if measures else None, None)  # type: ignore[arg-type]
        self.tensors = Tensors(self.recorder)

    def one_by_one(self, tensors: list[torch.Tensor]) -> list[int]:
        return [self.tensors.number(tensor) for tensor in tensors]

    def at_once(self, tensors: list[torch.Tensor], asked: KnownById | None) -> list[int]:
        found = self.tensors.numbers(tensors, asked)
        assert len(found) == len(tensors)
        return found

    def next_step(self) -> None:
        self.recorder.begin_step(self.recorder.step + 1)
        self.tensors.new_step()


def happens(tensors: Tensors, shown: list[torch.Tensor], what: str, at_once: bool) -> None:
    """Have something happen to all of the tensors."""
    if what == "distrust":
        tensors.mark_all_unversioned(shown) if at_once else tensors.mark_unversioned(*shown)
    elif what == "unseen":
        for group in [shown] if at_once else [[one] for one in shown]:
            tensors.note_possible_writes(group)
    else:
        optimizer = what == "left"
        if not at_once or tensors.note_writes_at_once(shown, optimizer) is None:
            for one in shown:
                tensors.note_write(one, optimizer)


@settings(max_examples=150, deadline=None)
@given(
    st.booleans(),
    st.lists(st.integers(0, len(MAKERS) - 1), min_size=1, max_size=6),
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 5), min_size=1, max_size=8),
            st.sampled_from(["look", "rise", "distrust", "unseen", "left", "overwritten", "forget", "settle", "step"]),
        ),
        max_size=8,
    ),
    st.booleans(),
)
def test_a_list_is_looked_up_as_each_of_its_tensors(
    measures: bool, kinds: list[int], program: list[tuple[list[int], str]], remembers: bool
) -> None:
    jobs = [Job(measures), Job(measures)]
    made = [MAKERS[kind]() for kind in kinds]
    asked: KnownById | None = {} if remembers else None
    for places, what in program:
        shown = [made[place % len(made)] for place in places]
        if what == "rise":
            for one in shown:
                torch.autograd.graph.increment_version(one)
        elif what == "forget":
            for job in jobs:
                job.tensors.forget_optimizer_writes()
        elif what == "step":
            for job in jobs:
                job.next_step()
            asked = None if asked is None else {}
        elif what == "settle":
            if measures:
                for one, number in zip(shown, jobs[0].one_by_one(shown)):
                    jobs[0].tensors.carry_over([one], [number], {})
                jobs[1].tensors.carry_over(shown, jobs[1].one_by_one(shown), {} if asked is None else asked)
        elif what != "look":
            for at_once, job in enumerate(jobs):
                happens(job.tensors, shown, what, bool(at_once))
        assert jobs[0].one_by_one(shown) == jobs[1].at_once(shown, asked)
    assert jobs[0].recorder._tensors == jobs[1].recorder._tensors
    assert len(jobs[0].recorder._again) == len(jobs[1].recorder._again)


def test_what_no_list_can_have_is_looked_up_one_by_one() -> None:
    with torch.inference_mode():
        inference = torch.ones(2)
    sparse = torch.eye(2).to_sparse()
    own = torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {}))
    job = Job(True)
    for other in (inference, sparse, own, torch.ones(2, device="meta")):
        assert len(job.tensors.numbers([torch.ones(2), other, torch.ones(2)])) == 1
    assert job.tensors.numbers_after_optimizer([torch.ones(2), inference, sparse, own], {}) == [-1] * 4


def test_what_was_told_of_a_tensor_is_asked_again_where_its_data_are_others() -> None:
    job, asked = Job(True), dict[int, object]()
    first, second = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))
    before = job.at_once([first, second], asked)  # type: ignore[arg-type]
    first.data = torch.zeros(6)
    numbers = job.at_once([first, second], asked)  # type: ignore[arg-type]
    assert numbers == job.one_by_one([first, second])
    assert numbers[0] != before[0]
    assert numbers[1] == before[1]


def test_lists_take_the_short_way_where_they_can() -> None:
    job = Job(True)
    many = [torch.randn(3) for _ in range(20)]
    with torch.no_grad():
        for _ in range(2):
            assert job.at_once(many, None) == job.one_by_one(many)
            assert job.tensors.note_writes_at_once(many, by_optimizer=True) is not None
