"""The looks that the guard takes late: which tensor each is of, and on which stream."""

from __future__ import annotations

import math
from typing import Any

import torch

from numscope.capture.torch.guard.device_log import DeviceLog
from numscope.capture.torch.guard.flags import DeviceFlags, Streams


def test_memory_that_is_used_again_is_another_tensor() -> None:
    late = DeviceLog(host=True)
    first = late.made(torch.full((4,), math.inf))
    late.launch()
    first.tensor = None
    second = late.made(torch.zeros(4))
    late.end()
    late.read(wait=True)
    assert (first.counts.posinf, second.counts.posinf) == (4, 0)


def test_views_and_other_names_of_a_tensor_share_its_look() -> None:
    late = DeviceLog(host=True)
    x = torch.randn(4, 4)
    look = late.made(x)
    assert late.made(x.detach()) is look
    assert late.given(x.T, lambda tensor: "") is look
    assert late.given(x[1:], lambda tensor: "") is look
    x.add_(1)
    assert late.made(x) is not look


def test_a_tensor_with_more_elements_than_memory_is_looked_at() -> None:
    late = DeviceLog(host=True)
    looks = [
        late.made(tensor)
        for tensor in (torch.tensor(math.nan).expand(3, 4), torch.full((2, 1), -math.inf).expand(2, 5))
    ]
    late.end()
    late.read(wait=True)
    assert [(look.counts.nan, look.counts.neginf) for look in looks] == [(12, 0), (0, 10)]


def test_memory_that_was_given_back_while_it_waited_is_left_alone() -> None:
    flags = DeviceFlags(torch.device("cpu"))
    x = torch.full((1000,), math.nan)
    row = flags.row(x)
    x.untyped_storage().resize_(0)
    flags.launch([(x, row, -1)])
    assert not flags.take().struck()


class Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_event(self, event: Any) -> None:
        self.log.append(f"{self.name} waits for the flags")

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def __enter__(self) -> None:
        self.log.append(f"on {self.name}")

    def __exit__(self, *error: object) -> None:
        self.log.append(f"off {self.name}")


def test_each_tensor_is_looked_at_on_its_own_stream_and_the_flags_wait_for_all() -> None:
    log: list[str] = []
    main, side = Stream("main", log), Stream("side", log)

    class Cuda:
        now = main

        def current_stream(self, device: Any) -> Stream:
            return self.now

        def stream(self, stream: Stream) -> Stream:
            return stream

        class Event:
            def record(self, stream: Stream) -> None:
                log.append(f"event on {stream.name}")

    cuda = Cuda()
    streams = Streams(torch.device("cpu"), cuda, lambda: id(cuda.now))
    streams.mark()
    assert streams.is_here()
    cuda.now = side
    assert not streams.is_here()
    streams.move()
    with streams.before():  # what waited was made on the stream before
        log.append("look")
    with streams.before():
        log.append("look")
    cuda.now = main
    streams.join()
    assert log == [
        "event on main",
        "side waits for the flags",
        "on main",
        "look",
        "off main",
        "look",
        "main waits for side",
    ]
    assert streams.is_here()
