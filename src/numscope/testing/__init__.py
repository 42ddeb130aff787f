"""Assertions for users' tests: two runs are equivalent, two models compute the same.

from numscope.testing import assert_equivalent

def test_the_new_kernel(numscope_capture):
    with numscope_capture("new", model):
        train_step()
    assert_equivalent(numscope_capture.path("new"), "runs/reference")
"""

from numscope.testing.equivalence import assert_equivalent, assert_identical

__all__ = ["assert_equivalent", "assert_identical"]
