"""From samples to rows of the table of accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.compare.judge.rounding.accuracy import Key, Row
from numscope.compare.judge.rounding.limits import Norms, bounds
from numscope.core.dtypes import SINGLE, unit_roundoff
from numscope.core.operators import Trait, operator
from numscope.diagnose.accuracy.samples import Sample

_HIGH = 0.999
Columns = Mapping[str, NDArray[Any]]


def units(columns: Columns) -> NDArray[np.float64]:
    """Return the errors of samples in units of the shape of their rules; 0 where the rule explains nothing and all is exact."""
    operators = [operator(name) for name in columns["operator"].tolist()]
    backward = columns["backward"].astype(np.bool_)
    roundoff = np.array([unit_roundoff(name) for name in columns["dtype"].tolist()])
    norms = Norms(
        roundoff=roundoff,
        **{name: columns[name].astype(np.float64) for name in _SIZES},
        forward_in=np.where(backward, columns["forward_in"], 0.0),
        forward_out=np.where(backward, columns["forward_out"], 0.0),
        averages=np.array([Trait.AVERAGES in one.traits for one in operators]),
        own=np.ones(len(roundoff)),
    )
    classes = np.array([one.rounding for one in operators], dtype=np.int64)
    shape = bounds(classes, backward, np.zeros(len(classes), np.bool_), norms).floor
    with np.errstate(all="ignore"):
        return np.asarray(columns["error"].astype(np.float64) / (roundoff * shape))


_SIZES = (
    "out",
    "off_elements",
    "out_elements",
    "largest_in",
    "in_elements",
    "deviation",
    "log_product",
    "log_elements",
)


def columns_of(samples: Iterable[Sample], chip: str = "") -> Columns:
    """Return samples as columns."""
    rows = [{**one._asdict(), **one.sizes._asdict(), "form": one.form.value, "chip": chip} for one in samples]
    return {name: np.array([row[name] for row in rows]) for name in rows[0] if name != "sizes"} if rows else {}


def rows_of(columns: Columns) -> Iterator[Row]:
    """Yield a row for each operator, direction, format and chip of samples; results that overflow say nothing."""
    errors = units(columns)
    narrow = np.array([unit_roundoff(name) > 4 * SINGLE for name in columns["dtype"].tolist()])
    keys = np.stack([columns["operator"], columns["backward"].astype(str), narrow.astype(str), columns["chip"]], 1)
    groups, place = np.unique(keys, axis=0, return_inverse=True)
    for number, (name, backward, coarse, chip) in enumerate(groups.tolist()):
        here = errors[place.reshape(-1) == number]
        here = here[np.isfinite(here)]
        if len(here):
            key = Key(name, backward == "True", coarse == "True")
            yield Row(key, chip, len(here), float(np.median(here)), float(np.quantile(here, _HIGH)))
