"""Assertions for users' tests: two runs are equivalent, two models compute the same, two checkpoints are the same.

from numscope.testing import assert_equivalent

def test_the_new_kernel(numscope_capture):
    with numscope_capture("new", model):
        train_step()
    assert_equivalent(numscope_capture.path("new"), "runs/reference")

def test_the_conversion(tmp_path):
    assert_same_weights(convert(model, tmp_path), model)
"""

from numscope.testing.equivalence import assert_equivalent, assert_identical
from numscope.testing.weights import assert_same_weights

__all__ = ["assert_equivalent", "assert_identical", "assert_same_weights"]
