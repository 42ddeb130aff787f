"""Whether two runs are of two precisions throughout."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from numscope.compare.align.alignment import align
from numscope.compare.align.slots import pair_slots
from numscope.compare.judge.rounding.precisions import Precisions, precisions
from numscope.compare.load.side import Codebook
from numscope.core.dtypes import unit_roundoff
from tests.unit.compare.judge.tables import W, X, data
from tests.unit.compare.scripted import Script, numbers

BF16 = ml_dtypes.bfloat16


def found(target: Script, reference: Script) -> Precisions | None:
    book = Codebook()
    a, b = target.side(book), reference.side(book)
    alignment = align(a, b)
    return precisions(a, b, alignment, pair_slots(a, b, alignment))


def products(narrow: int, count: int = 10, name: str = "Functional.linear", parameters: type = np.float32) -> Script:
    """Products, of which so many compute in bfloat16, in modules that hold parameters of a dtype."""
    script = data(Script(), X)
    for number in range(count):
        made = numbers((16, 64), seed=number)
        script.call(
            f"Module.up{number}.Linear.forward.0",
            {"input.0": X, "parameters.weight": (W * np.float32(number + 1)).astype(parameters)},
            module=f"up{number}",
        )
        output = made.astype(BF16) if number < narrow else made
        script.call(f"{name}.{number}.forward", {"input.0": X, "input.1": W}, {"output.0": output})
    return script


@pytest.mark.parametrize(("narrow", "two"), [(0, False), (3, False), (4, True), (10, True)])
def test_more_than_a_third_of_the_products(narrow: int, two: bool) -> None:
    """If more than 30 % of the products, or of the parameters, differ in dtype, the runs are of two precisions, and u is
    that of the coarser one."""
    result = found(products(narrow), products(0))
    assert result == (Precisions("bfloat16", "float32") if two else None)


def test_the_roundoff_is_the_coarser_one() -> None:
    assert Precisions("bfloat16", "float32").roundoff == unit_roundoff("bfloat16")
    assert Precisions("float32", "float16").roundoff == unit_roundoff("float16")


def test_parameters_of_another_precision() -> None:
    result = found(products(0, parameters=BF16), products(0))
    assert result == Precisions("bfloat16", "float32", parameters=True)
    assert result.sentence() == "the target's parameters are bfloat16, the reference's float32"


def test_products_that_are_not_paired_tell_too() -> None:
    result = found(products(10, name="Torch.matmul"), products(0))
    assert result == Precisions("bfloat16", "float32")
    assert result.sentence() == "the target computes in bfloat16, the reference in float32"
