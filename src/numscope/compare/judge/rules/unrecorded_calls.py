"""Names a call that one side alone has, where no inputs were recorded that would lead to it.

What a call was given is then taken to be what ran before it: where everything before agrees but a call that the other
side does not have, that is what the first output that is off comes from.
"""

from __future__ import annotations

import numpy as np

from numscope.compare.judge.findings import Finding, Inputs
from numscope.compare.judge.ledger import Ledger
from numscope.compare.judge.reasons import one_sided_call
from numscope.compare.load.side import Ints, Side
from numscope.compare.load.unrecorded_inputs import is_source
from numscope.core.operators import IDLE


def lone_before(ledger: Ledger, pair: int, error: float, explained: float, came_in: float) -> Finding | None:
    """Return the first computing call, of one side alone, between the pair before this one and this one."""
    if any(difference.telling for difference in ledger.differences.get(pair, ())):
        return None
    alignment = ledger.alignment
    row, other = int(alignment.target[pair]), int(alignment.reference[pair])
    same_phase = ledger.a.calls.phase[alignment.target] == ledger.a.calls.phase[row]
    earlier = np.flatnonzero((alignment.target < row) & ~ledger.composite & same_phase)
    last = int(earlier[np.argmax(alignment.target[earlier])]) if len(earlier) else -1
    begin = (int(alignment.target[last]), int(alignment.reference[last])) if last >= 0 else (-1, -1)
    extra = _first(ledger, ledger.a, alignment.alone_target, begin[0], row)
    missing = _first(ledger, ledger.b, alignment.alone_reference, begin[1], other)
    if extra < 0 and missing < 0:
        return None
    order = float(extra) if extra >= 0 else ledger.place_of_reference(missing)
    place = (ledger.a.step, ledger.a.rank, order)
    name = ledger.a.calls.name(row)
    sizes = (error, explained, came_in)
    reason = one_sided_call(extra, name)
    return Finding(reason, -1, extra, missing, *place, *sizes, inputs=Inputs.UNRECORDED)


def _first(ledger: Ledger, side: Side, alone: Ints, begin: int, end: int) -> int:
    for row in alone[(alone > begin) & (alone < end)].tolist():
        idle = ledger.operator_class(side, row) in IDLE or is_source(side, row)
        if not idle and side.calls.children[row] == 0 and side.calls.phase[row] == side.calls.phase[end]:
            return int(row)
    return -1
