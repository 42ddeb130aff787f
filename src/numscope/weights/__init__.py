"""Are these the same weights? Two sets of tensors of any format, which tensors belong together, and what is wrong.

    numscope weights converted/ original/
    ns.weights(model_a, "original/").verdict

`sources/` reads a format each, some rows at a time; `matching/` finds which rows of one side are which of the other, by
names and by value; `judge/` says whether that is a conversion or a fault, and which.
"""

from numscope.core.callable_module import make_callable

make_callable(__name__, "numscope.weights.comparison", "weights")
