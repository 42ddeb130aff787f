from __future__ import annotations

import threading

import pytest

from numscope.store.writing.lanes import Lane


def test_jobs_are_done_in_order_and_waiting_counts_their_bytes() -> None:
    lane, go, done = Lane("test"), threading.Event(), []
    first = lane.put(lambda: (go.wait(), done.append(0))[1], 10)
    jobs = [lane.put(lambda n=n: done.append(n), 1) for n in range(1, 20)]
    assert lane.waiting == 29
    assert not first.is_done
    go.set()
    jobs[-1].wait()
    lane.close()
    assert done == list(range(20))
    assert lane.waiting == 0


def test_after_a_fault_nothing_is_done_and_every_job_tells_why() -> None:
    lane, done = Lane("test"), []

    def fault() -> None:
        raise OSError(28, "No space left on device")

    jobs = [lane.put(fault, 1), lane.put(lambda: done.append(1), 1)]
    for job in jobs:
        with pytest.raises(OSError, match="No space left"):
            job.wait()
    lane.close()
    assert done == []


def test_where_no_thread_can_be_started_jobs_are_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    lane, done = Lane("test"), []
    lane.put(lambda: done.append(1), 1).wait()
    assert done == [1]
    lane.close()
