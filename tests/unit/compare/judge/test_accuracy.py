"""The table of accuracy: what is granted is above what is measured, and not far above it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch

from numscope.compare.judge.rounding.accuracy import (
    SIDES,
    Accuracy,
    Key,
    Row,
    accuracy_of,
    measured,
    own_rows,
    read_rows,
)
from numscope.core.errors import SettingsError
from numscope.core.operators import Rounding, operator
from numscope.diagnose.accuracy.cases import dtypes, operators
from numscope.diagnose.accuracy.data import Form
from numscope.diagnose.accuracy.measured import columns_of, units
from numscope.diagnose.accuracy.samples import accuracy

# Forward rows whose 99.9th percentile is more than four times their median, and why no shape of norms does better.
_ONE_NUMBER = "the error of a single number may be next to nothing: of normal numbers the percentile is 5 medians"
_CHANNELWISE = "batch_norm native_batch_norm native_group_norm instance_norm"
_WIDE = {
    **dict.fromkeys("dot vdot mse_loss l1_loss smooth_l1_loss cross_entropy nll_loss".split(), _ONE_NUMBER),
    **dict.fromkeys("binary_cross_entropy trace _foreach_norm".split(), _ONE_NUMBER),
    **dict.fromkeys(
        "index_add scatter_add scatter_reduce".split(), "adds in place, in the narrow format, term by term"
    ),
    **dict.fromkeys("std var".split(), "cancels by deviations, of which a fingerprint of x has no norm"),
    **dict.fromkeys("arange floor_divide local_response_norm".split(), "exact for most inputs"),
    **dict.fromkeys(_CHANNELWISE.split(), "one kernel a layout: channels_last adds up in the order of memory"),
    "mv": "BLAS has kernels of its own for long rows",
}


# The same backward. Of a gradient only norms are known, and they bound the terms that it adds up from above.
_BOUND = "norms bound the terms: most gradients have far smaller ones, some have not"
_MEAN = "a gradient over a count: exact where the count is a power of two"
_RECURRENT = "each step of a recurrence enlarges what the one before it rounded, in cuDNN in an order of its own"
_WIDE_BACKWARD = {
    **dict.fromkeys("_foreach_norm norm vector_norm normalize cosine_similarity rms_norm".split(), _BOUND),
    **dict.fromkeys("std std_mean var var_mean softmax softmin logsumexp logcumsumexp kl_div".split(), _BOUND),
    **dict.fromkeys("binary_cross_entropy binary_cross_entropy_with_logits cross_entropy nll_loss".split(), _BOUND),
    **dict.fromkeys("mse_loss smooth_l1_loss prelu kron pow scaled_dot_product_attention".split(), _BOUND),
    **dict.fromkeys("mean nanmean avg_pool2d adaptive_avg_pool2d l1_loss".split(), _MEAN),
    **dict.fromkeys("gru gru_cell lstm lstm_cell rnn_relu rnn_tanh".split(), _RECURRENT),
    **dict.fromkeys(
        "embedding gather index_select".split(), "adds up as many rows as chose one: no norm says how many"
    ),
    **dict.fromkeys((*_CHANNELWISE.split(), "group_norm"), "cancels by a mean over a deviation, squared: as forward"),
    **dict.fromkeys("median sort topk fmod".split(), "a choice that falls otherwise sends a gradient elsewhere"),
    "local_response_norm": "exact for most inputs",
    "ifft": _BOUND,
    "grid_sample": "its weights are differences of positions, which the narrow format rounds",
}


def _wide(backward: bool) -> set[str]:
    """Return the operators that are granted more than eight times the median of what was measured."""
    known = measured()
    medians: dict[Key, float] = defaultdict(float)
    for row in own_rows():
        medians[row.key] = max(medians[row.key], row.median)
    rows = [key for key in medians if key.backward == backward]
    return {key.operator for key in rows if known.high[key] > 8 / SIDES * medians[key]}


def test_every_row_is_granted_more_than_was_measured_and_at_most_eight_medians_but_for_those_with_a_reason() -> None:
    known = measured()
    for row in own_rows():
        assert row.high <= known.high[row.key]  # the granted error is above the 99.9th percentile of every chip
    assert _wide(backward=False) == set(_WIDE)
    assert _wide(backward=True) == set(_WIDE_BACKWARD)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_what_is_granted_is_above_what_this_machine_makes_of_inputs_never_seen(dtype: torch.dtype) -> None:
    samples = []
    for name in (one for one in operators() if dtype in dtypes(one)):
        for form in Form:
            try:
                samples += list(accuracy(name, form, 5000, torch.device("cpu"), dtype))
            except (RuntimeError, NotImplementedError):  # an operator that has no kernel for this format
                continue
    columns = columns_of(samples)
    classes = [operator(name).rounding for name in columns["operator"].tolist()]
    narrow = dtype is torch.bfloat16
    keys = zip(columns["operator"].tolist(), classes, columns["backward"].tolist())
    own = np.array([measured().of(name, kind, bool(back), narrow) for name, kind, back in keys])
    errors = np.nan_to_num(units(columns), posinf=0.0)  # what overflows says nothing
    chosen = np.array(classes) == Rounding.DISCRETE  # a tie sends a gradient elsewhere: judged as a choice
    over = errors > own * (1 + 1e-6)
    # Of the 200 samples of a row the largest stands for the percentile: one new draw in 200 is above it, and its kin.
    assert over[~chosen].mean() < 0.03
    beyond = (errors > SIDES * own * (1 + 1e-6)) & ~chosen
    assert not beyond.any(), columns["operator"][beyond].tolist()


def test_what_nobody_measured_is_held_to_its_class() -> None:
    known = measured()
    assert known.of("view", Rounding.MOVE, False, False) == 0.0
    assert known.of("view", Rounding.MOVE, True, False) == known.high[Key("sum", False, False)]
    assert known.of("all_reduce", Rounding.COMMUNICATE, False, False) == known.high[Key("sum", False, False)]
    of_class = sorted(value for key, value in known.high.items() if _is(key, Rounding.STEEP))
    assert of_class[0] <= known.of("unheard_of", Rounding.STEEP, False, False) <= of_class[-1]
    assert known.of("custom", Rounding.OTHER, False, True) > 0


def _is(key: Key, kind: Rounding) -> bool:
    return operator(key.operator).rounding is kind and not key.backward and not key.narrow


def test_the_worst_chip_counts_and_an_operator_has_one_name() -> None:
    key = Key("gelu", False, False)
    both: Accuracy = accuracy_of([Row(key, "one", 9, 0.5, 1.0), Row(key, "other", 9, 0.5, 3.0)])
    assert both.of("gelu_", Rounding.LIPSCHITZ, False, False) == 3.0


def test_a_file_that_is_no_table_is_said_so() -> None:
    with pytest.raises(SettingsError, match="no table of accuracy"):
        list(read_rows(["a,b", "1,2"], "x.csv"))
