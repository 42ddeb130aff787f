"""Compiled kernels are launched as Triton itself would launch them, whatever its version; without Triton or a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from numscope.fingerprint.cuda import launch as triton_launch
from numscope.fingerprint.cuda.launch import Direct, Used, direct_of, launch_of
from numscope.fingerprint.native import load

Given = list[tuple[Any, ...]]
METADATA = (4, 1, 1024)


class Plain:
    """Hands on what it is given."""

    def __init__(self, given: Given) -> None:
        self.launch: Any = lambda *all_of_it: given.append(all_of_it)

    def __call__(self, *all_of_it: Any) -> None:
        self.launch(*all_of_it)


class WithSwitches(Plain):
    """Adds what is the same for every launch."""

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        self.launch(x, y, z, stream, function, False, True, None, *rest)


class WithMemory(Plain):
    """Allocates something for each launch."""

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        self.launch(x, y, z, stream, function, [x * y * z], *rest)


class ByName(Plain):
    """Hands on by name."""

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        self.launch(x, y, z, rest, stream=stream, function=function)


class Strange:
    """Has no compiled launcher that could be asked for."""

    def __init__(self, given: Given) -> None:
        self._given = given

    def __call__(self, *all_of_it: Any) -> None:
        self._given.append(all_of_it)


@pytest.mark.parametrize("kind", [Plain, WithSwitches, WithMemory, Strange])
def test_the_compiled_launcher_is_given_what_tritons_own_function_gives_it(kind: type) -> None:
    given: Given = []
    run = kind(given)
    launch = launch_of(SimpleNamespace(run=run, function=77, packed_metadata=METADATA))
    assert given == []  # nothing was launched to find out
    run(5, 1, 1, 9, 77, METADATA, None, None, None, 100, 200)
    launch(5, 9, 100, 200)
    assert given[0] == given[1]


@pytest.mark.parametrize("kind", [Plain, WithSwitches])
def test_the_compiled_launcher_is_called_directly_where_all_is_fixed(kind: type) -> None:
    run = kind([])
    assert launch_of(SimpleNamespace(run=run, function=77, packed_metadata=METADATA)).call is run.launch


@pytest.mark.parametrize("kind", [WithMemory, ByName, Strange])
def test_where_not_all_is_fixed_tritons_own_function_is_called(kind: type) -> None:
    run = kind([])
    assert launch_of(SimpleNamespace(run=run, function=77, packed_metadata=METADATA)).call is run


class Attribute(ctypes.Structure):
    """CUDA's CUlaunchAttribute, of which the value is an int."""

    _fields_ = [("id", ctypes.c_int), ("gap", ctypes.c_char * 4), ("value", ctypes.c_int), ("room", ctypes.c_char * 60)]


class Config(ctypes.Structure):
    """CUDA's CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    ]


DRIVER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Config), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("answer", [0, 201])
def test_the_launch_in_c_gives_the_driver_all_arguments(early: bool, answer: int) -> None:
    native = load()
    if native is None:
        pytest.skip("no C compiler")
    seen: list[Any] = []

    @DRIVER
    def driver(config: Any, function: int, arguments: Any, extra: Any) -> int:
        given = config.contents
        kind = given.attributes[0]
        seen.append((list(given.grid), list(given.block), given.shared, given.stream, function, extra))
        seen.append([(kind.id, kind.value)][: given.count])
        seen.append([ctypes.cast(arguments[k], ctypes.POINTER(ctypes.c_int64))[0] for k in range(8)])
        return answer

    where = ctypes.cast(driver, ctypes.c_void_p).value or 0
    direct = Direct(where, 0x7F00_1234_5678_9ABC, 128, 4096, early, takes=8)
    about = np.zeros((4096, 3), np.int64)
    used = Used(4095, 31_000, 4096, 32_768, about.ctypes.data)
    packed = direct.packed(used, 915, 0x5500_0000_0010, (1 << 40, 1 << 41), [0, 1 << 45, 22, 0, 0, -3], line=3)
    address = 0x7FFE_9234_5678_9AB0
    assert native.launch(packed, 77, address >> 32, address) == answer
    left = [(4096, 31_915), [77, 1 << 40, 1 << 41]] if answer == 0 else [(4095, 31_000), [0, 0, 0]]
    assert [(used.lines, used.records), about[4095].tolist()] == left  # what was not launched is not there
    assert seen[0] == ([915, 1, 1], [128, 1, 1], 4096, 0x5500_0000_0010, 0x7F00_1234_5678_9ABC, None)
    assert seen[1] == ([(6, 1)] if early else [])
    assert seen[2] == [address, 1 << 45, 22, 4095, 31_000, -3, 0, 0]  # the last two are Triton's own


@pytest.mark.parametrize(("lines", "records", "room"), [(9, 100, True), (10, 0, False), (0, 101, False)])
def test_nothing_is_launched_where_there_is_no_room(lines: int, records: int, room: bool) -> None:
    native = load()
    if native is None:
        pytest.skip("no C compiler")
    seen: list[int] = []
    driver = DRIVER(lambda *_: seen.append(1) or 0)
    about = np.zeros((10, 3), np.int64)
    used = Used(lines, records, 10, 1000, about.ctypes.data)
    where = ctypes.cast(driver, ctypes.c_void_p).value or 0
    packed = Direct(where, 1, 128, 0, False, takes=6).packed(used, 900, 0, (1, 1), [0] * 6, line=3)
    assert (native.launch(packed, 0, 0, 16) == 0) == bool(seen) == room
    assert (used.lines, used.records) == ((lines + 1, records + 900) if room else (lines, records))


def test_a_kernel_with_other_arguments_than_ours_is_left_to_triton() -> None:
    for count in (5, 10):
        assert Direct(1, 2, 128, 0, False, count).packed(Used(), 1, 0, (1, 1), [0] * 6, 3) is None


def kernel(**about: Any) -> Any:
    usual = {"num_ctas": 1, "num_warps": 4, "shared": 512, "target": SimpleNamespace(backend="cuda")}
    return SimpleNamespace(function=77, metadata=SimpleNamespace(**{**usual, **about}))


class Driver:
    """Knows of one function, with arguments of these sizes."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = sizes
        self.cuLaunchKernelEx = DRIVER(lambda *_: 0)

    def cuFuncGetParamInfo(self, function: Any, index: Any, place: Any, size: Any) -> int:
        assert function.value == 77
        if index.value >= len(self._sizes):
            return 1
        place._obj.value = sum(self._sizes[: index.value])
        size._obj.value = self._sizes[index.value]
        return 0

    def cuFuncGetAttribute(self, most: Any, attribute: int, function: Any) -> int:
        most._obj.value = 128
        return 0


@pytest.mark.parametrize(
    ("sizes", "about", "can"),
    [
        ((8, 8, 8), {}, True),
        ((8, 8, 8), {"launch_pdl": True, "global_scratch_size": 0}, True),
        ((8, 4, 8), {}, False),
        ((8, 8, 8), {"num_ctas": 2}, False),
        ((8, 8, 8), {"num_warps": 8}, False),
        ((8, 8, 8), {"global_scratch_size": 16}, False),
        ((8, 8, 8), {"launch_cooperative_grid": True}, False),
        ((8, 8, 8), {"target": SimpleNamespace(backend="hip")}, False),
        ((8, 8, 8), {"shared": None, "target": None}, False),
    ],
)
def test_a_kernel_is_launched_directly_where_there_is_no_doubt(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], about: dict[str, Any], can: bool
) -> None:
    monkeypatch.setattr(triton_launch, "_driver", lambda: Driver(*sizes))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = direct_of(kernel(**about))
    assert (found is not None) == can
    if found is not None:
        assert found[1:] == (77, 128, 512, "launch_pdl" in about, 3)
