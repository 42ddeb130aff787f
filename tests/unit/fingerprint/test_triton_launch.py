"""Compiled kernels are launched as Triton itself would launch them, whatever its version; without Triton or a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from numscope.fingerprint.triton_launch import launch_of

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
