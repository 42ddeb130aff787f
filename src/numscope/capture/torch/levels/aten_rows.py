"""The rows of what an operator is given and gives back besides plain tensors, measured unseen by others' functions."""

from __future__ import annotations

from typing import Any

from numscope.capture.torch.levels.operator_schema import Operator
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.thread import State
from numscope.capture.torch.watch import Watch


def nested_rows(
    watch: Watch, state: State, order: int, slot: int, value: Any, others: list[tuple[str, Any]]
) -> list[int]:
    """Return the rows of the tensors in a value that is no plain tensor, in the slot of one of an operator's arguments."""
    with OwnCode(watch):
        rows = watch.rows(order, watch.flatten_one("input", watch.inputs.index(slot), value, others))
    return rows


def named_rows(
    watch: Watch, state: State, operator: Operator, order: int, args: Any, others: list[tuple[str, Any]], kwargs: Any,
    rows: list[int],
) -> int:  # fmt: skip
    """Add the rows of the tensors among an operator's keyword arguments; return the text of all that are no tensors."""
    named: list[tuple[str, Any]] = []
    with OwnCode(watch):
        rows += watch.rows(order, watch.flatten_named("kwargs", kwargs, named))
    return watch.arguments(operator.others(args, others), named)


def result_rows(watch: Watch, state: State, operator: Operator, order: int, args: Any, result: Any) -> list[int]:
    """Return the rows of results that are not one plain tensor."""
    with OwnCode(watch):
        base = args[0] if operator.aliases else None
        rows = watch.rows(order, watch.flatten_output(result), base=base)
    return rows
