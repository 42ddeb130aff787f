"""The way from a device to the disk, with an engine whose copies arrive only when they are waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from numscope.capture.torch import device_to_host as host
from numscope.capture.torch.device_to_host import DeviceCopy, Move, Way


class Late:
    """An engine that copies as late as it may: when its end is waited for. Until then the target is rubbish."""

    def __init__(self) -> None:
        self.waited_for: list[Any] = []
        self.most_at_once = self._at_once = 0

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def begin(self, moves: Iterable[Move]) -> Callable[[], None]:
        held = list(moves)
        for target, _, _ in held:
            target.fill_(0xEE)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)

        def wait() -> None:
            for target, source, ready in held:
                self.waited_for.append(ready)
                target.copy_(source)
            self._at_once -= 1

        return wait


def brought(way: Way, copies: list[DeviceCopy]) -> bytes:
    return b"".join(bytes(piece) for piece in way.bring(copies))


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 16))
def test_bytes_arrive_whole_and_in_order_whatever_the_sizes(sizes: list[int], room: int) -> None:
    copies = [DeviceCopy(torch.randint(0, 255, (size,), dtype=torch.uint8), n) for n, size in enumerate(sizes)]
    engine = Late()
    way = Way(engine, room)
    pieces = [bytes(piece) for piece in way.bring(copies)]
    assert b"".join(pieces) == b"".join(raw(copy.tensor) for copy in copies)
    assert all(len(piece) == room for piece in pieces[:-1])
    assert set(engine.waited_for) == {n for n, size in enumerate(sizes) if size}  # nothing before it was whole
    assert brought(way, copies[::-1]) == b"".join(raw(copy.tensor) for copy in copies[::-1])  # the buffers serve again


def test_a_piece_is_on_its_way_while_the_one_before_it_is_written() -> None:
    engine = Late()
    for piece in Way(engine, 8).bring([DeviceCopy(torch.arange(40, dtype=torch.uint8), None)]):
        before = bytes(piece)
        assert b"\xee" not in before
    assert engine.most_at_once == 2


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    ],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_every_dtype_and_shape_is_taken(
    dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_Cuda", lambda device: Late())
    monkeypatch.setattr(host, "PIECE", 5)
    host._thread.__dict__.clear()
    tensor = torch.randint(0, 2, shape).to(dtype)
    given = host.for_the_writer(DeviceCopy(tensor, None))
    assert isinstance(given, host.OnDevice)
    assert given.shape == shape
    assert given.nbytes == tensor.nbytes
    name = str(dtype).removeprefix("torch.")
    assert given.dtype == np.dtype(getattr(ml_dtypes, name, None) or name)
    assert b"".join(bytes(piece) for piece in given.fetch([given.data])) == raw(tensor)
    host._thread.__dict__.clear()


def test_what_is_here_is_taken_as_it_is() -> None:
    tensor = torch.arange(4.0)
    assert host.fetched_later(tensor) is tensor
    np.testing.assert_array_equal(host.for_the_writer(tensor), tensor.numpy())
