"""Names of operators as they come, in any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from numscope.capture.recording.interned import Series, Strings
from numscope.capture.torch.levels.operator_schema import Names, Operator


def test_each_name_comes_once_in_a_step_whatever_the_thread():
    strings = Strings()
    names = Names(Series(strings, "Aten.mm", "{head}.{n}.{phase}"), "backward")
    for _ in range(3):
        names.begin_step()
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: [names.next() for _ in range(300)], range(4)))
        texts = sorted(strings[number] for numbers in found for number in numbers)
        assert texts == sorted(f"Aten.mm.{number}.backward" for number in range(1200))


def test_what_an_operator_is_can_be_read_from_its_schema():
    aten = torch.ops.aten
    ordinary = [aten.mm.default, aten.view.default, aten.cat.default, aten.native_layer_norm.default, aten.sum.default]
    assert all(Operator(func).ordinary for func in ordinary)
    others = [
        aten.add_.Tensor,
        aten.add.out,
        aten.empty.memory_format,
        aten.native_batch_norm.default,
        aten._conj.default,
    ]
    assert not any(Operator(func).ordinary for func in others)
