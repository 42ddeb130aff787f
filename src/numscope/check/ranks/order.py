"""Parts that an all-gather brought, put together in another order than that of the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from numscope.check.ranks.replicas import Facts
from numscope.check.ranks.step_facts import Forward
from numscope.check.remark import Remark


def order(step: int, facts: Facts) -> Iterator[Remark]:
    """Find a concatenation of all parts of a gathered tensor that has them in another order.

    Who cuts the parts further to bring them into a place of their own, as context parallel ranks do, joins other tensors.
    """
    for rank, one in facts.items():
        orders = {frozenset(parts): parts for parts in one.gathered if len({*parts}) == len(parts) > 1}
        for call in one.joins if orders else ():
            found = _order(call, orders)
            if found is not None:
                text = (
                    f"{call.name}{f' in {call.module}' if call.module else ''} puts together what the ranks gave in the "
                    f"order {found}: parts of a tensor that is cut belong in the order of the ranks"
                )
                yield Remark("order", step, [rank], [], text, call.name)
                return


def _order(call: Forward, orders: dict[frozenset[int | None], tuple[int | None, ...]]) -> str | None:
    """Return the numbers of the parts in the order in which a call joins them, None where that is theirs or none."""
    given = tuple(one.bits for one in call.inputs)
    parts = orders.get(frozenset(given))
    if parts is None or len(given) != len(parts) or given == parts:
        return None
    return ", ".join(str(parts.index(one)) for one in given)
