"""Align, measure, judge: which calls belong together, how far apart they are, and what that means."""

from numscope.core.callable_module import make_callable

make_callable(__name__, "numscope.diagnose.sharpened", "compare")  # by lockstep too, where tensors were kept
