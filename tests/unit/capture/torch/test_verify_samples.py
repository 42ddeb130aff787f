"""Where samples fall, and that elements are read as they lie, with and without an operator of the device."""

import numpy as np
import pytest
import torch

from numscope.capture.torch.verify.lens import Range, Read, all_of, elements
from numscope.capture.torch.verify.mode import _from_device
from numscope.capture.torch.verify.sampling import Sampling


def test_every_element_of_ten_million_is_computed_again_within_some_steps():
    shape, random = (1000, 10000), np.random.default_rng(0)
    steps = []
    for trial in range(40):
        place = tuple(int(random.integers(size)) for size in shape)
        for step in range(40):
            boxes = Sampling(step, place=trial).boxes(shape)
            if any(all(at in r.places for at, r in zip(place, box)) for box in boxes):
                break
        steps.append(step + 1)
    assert np.mean(steps) < 20
    assert max(steps) <= 36


@pytest.mark.parametrize("shape", [(), (0, 3), (2048,), (7, 1, 5000), (3, 3, 3, 3, 100)])
def test_boxes_are_inside_of_the_output(shape):
    for place in range(20):
        for box in Sampling(1, place).boxes(shape):
            assert len(box) == len(shape)
            assert all(r.size == 0 or r.places.max() < size for r, size in zip(box, shape))


def test_elements_of_any_layout_are_the_same_by_memory_and_by_a_copy():
    x = torch.randn(9, 8, 7).permute(2, 0, 1)[:, 1:]
    box = (Range(1, 2, 3), Range(0, 3, 2), Range(5, 1, 3))
    rows = np.array([[3, 4], [19, 0]])
    reads = [Read(x, box), Read(x.bfloat16(), box), all_of(torch.tensor(3.0)), all_of(torch.empty(0, 3))]
    reads += [Read(torch.randn(20, 6), (Range(1, 2, 2),), rows), all_of(torch.ones(1).expand(4, 5))]
    for read in reads:
        assert np.array_equal(elements(read), _from_device(read))
    assert np.array_equal(elements(reads[0]), x.double()[1::2, ::3, 5:].numpy()[:, :2])
