"""Names and numbers stay one to one when several threads ask for new ones at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from numscope.capture.recording.interned import Series, Strings

THREADS = 4


@pytest.fixture(autouse=True)
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], None]) -> None:
    barrier = threading.Barrier(THREADS)

    def one(index: int) -> None:
        barrier.wait()
        work(index)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_text_has_one_number_and_a_number_one_text() -> None:
    strings = Strings()
    found: list[list[tuple[str, int]]] = [[] for _ in range(THREADS)]

    def work(index: int) -> None:
        for n in range(300):
            for text in (f"{n}", f"{index}.{n}"):
                found[index].append((text, strings.id(text)))

    at_once(work)
    pairs = {pair for part in found for pair in part}
    assert len({text for text, _ in pairs}) == len({number for _, number in pairs}) == len(pairs) == 300 * (THREADS + 1)
    assert all(strings[number] == text for text, number in pairs)


def test_calls_of_one_thing_have_a_number_and_a_name_each_in_every_step() -> None:
    strings = Strings()
    series = Series(strings, "Torch.add", "{head}.{n}.{phase}")
    for epoch in range(20):
        found: list[list[str]] = [[] for _ in range(THREADS)]

        def work(index: int, epoch: int = epoch, found: list[list[str]] = found) -> None:
            for _ in range(30):
                found[index].append(strings[series.name(series.next(epoch))])

        at_once(work)
        assert {name for part in found for name in part} == {f"Torch.add.{n}.forward" for n in range(30 * THREADS)}
