"""The own errors of a side's calls, each call held against exact arithmetic while it ran (runs captured with `verify`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from numscope.capture.torch.verify.sentences import sentence
from numscope.core.json_value import JsonObject
from numscope.store.joins import rows_of_checks
from numscope.store.schema import TableRow


class Own(IntEnum):
    """The known own error of a call."""

    UNKNOWN = 0
    SOUND = 1  # each of its operators was looked at, and nothing was wrong
    RIGHT = 2  # one operator, all of whose output is what exact arithmetic gives, but for rounding
    WRONG = 3  # an operator of it is beyond what healthy kernels have


@dataclass(frozen=True)
class Verified:
    """The known own errors of a side's calls."""

    own: NDArray[np.int64]  # by row of the calls
    operator: Mapping[int, str]  # the one operator of the calls that are right
    wrong: Mapping[int, str]  # what is wrong, in words

    def of(self, row: int) -> Own:
        """Return what is known of a call."""
        return Own(int(self.own[row]))


def verified(calls: pa.Table, checks: pa.Table) -> Verified | None:
    """Return what is known of some calls; None where nothing was verified."""
    if not checks.num_rows:
        return None
    rows = rows_of_checks(calls, checks)
    count = np.bincount(rows[rows >= 0], minlength=calls.num_rows)
    whole, none = (np.asarray(pc.equal(checks["verified"], word).to_numpy(), bool) for word in ("exact", "none"))
    own = np.where(count > 0, Own.SOUND, Own.UNKNOWN)
    own[rows[(rows >= 0) & none]] = Own.UNKNOWN
    beyond = np.asarray(pc.fill_null(pc.greater(checks["units"], checks["limit"]), False).to_numpy(), bool)
    named = checks["operator"].to_pylist()
    operator = {}
    for at in np.flatnonzero((rows >= 0) & whole & ~beyond).tolist():
        row = int(rows[at])
        if count[row] == 1:
            own[row], operator[row] = Own.RIGHT, named[at]
    wrong: dict[int, str] = {}
    for at in np.flatnonzero((rows >= 0) & beyond).tolist():
        row = int(rows[at])
        own[row] = Own.WRONG
        wrong.setdefault(row, _words(checks.slice(at, 1).to_pylist()[0]))
    return Verified(own, operator, wrong)


def _words(check: TableRow) -> str:
    told: JsonObject = json.loads(check["pattern"]) if check["pattern"] else {}
    told = {key: float(value) if value in ("nan", "inf", "-inf") else value for key, value in told.items()}
    name, dtype = check["operator"], check["dtype"] or ""
    which = sentence(name, told, dtype) if told else "its own error is beyond what rounding explains"
    return f"{name} computes wrongly on {check['device']} in {dtype}: {which}"
