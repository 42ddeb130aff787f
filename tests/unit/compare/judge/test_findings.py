"""The records of the judge."""

from __future__ import annotations

import math

from numscope.compare.judge.findings import ErrorSizes, Finding, Suspicion, or_zero
from numscope.compare.judge.reasons import MissingCall, OutputDiffers
from tests.unit.compare.judge.tables import W, X, chain, facts_of


def suspicion(**options: bool) -> Suspicion:
    finding = Finding(OutputDiffers(), 0, 1, 1, 0, 0, 1.0, 0.5, 1e-6, 0.0)
    return Suspicion(finding, options.get("firm", False), failed_at=2.0)


def test_an_agreement_withdraws_a_suspicion() -> None:
    """A suspicion is withdrawn if the two ways meet again within 24 calls."""
    one = suspicion()
    assert one.stands
    one.withdraw(3.0)
    assert not one.stands


def test_a_failure_after_an_agreement_raises_a_suspicion_again() -> None:
    """A failure further on raises the suspicion again."""
    one = suspicion()
    one.withdraw(3.0)
    one.fail(4.0, 0.25)
    assert one.stands
    assert (one.failures, one.last_error) == (2, 0.25)


def test_an_agreement_of_an_earlier_place_takes_nothing_back() -> None:
    one = suspicion()
    one.withdraw(3.0)
    one.withdraw(1.0)
    assert not one.stands


def test_nothing_withdraws_a_firm_suspicion() -> None:
    one = suspicion(firm=True)
    one.withdraw(9.0)
    assert one.stands


def test_a_confirmed_suspicion_may_be_of_another_finding() -> None:
    one, other = suspicion(), suspicion().finding
    one.withdraw(9.0)
    one.confirm(other)
    assert one.stands
    assert one.finding is other


def test_a_finding_names_the_call_of_the_side_that_has_it() -> None:
    facts = facts_of(chain(("Torch.tanh", W)), chain(("Torch.tanh", W)))
    paired = facts.finding(OutputDiffers(), 1, ErrorSizes(0.5, 1e-6))
    missing = Finding(MissingCall("x"), -1, -1, 1, 0, 0, 0.5, 0.5, 0.0, 0.0)
    assert paired.call(facts.a, facts.b) == (facts.a, 1)
    assert missing.call(facts.a, facts.b) == (facts.b, 1)
    assert paired.sizes == ErrorSizes(0.5, 1e-6, 0.0)
    assert X.size


def test_an_unknown_measure_counts_as_zero_and_an_infinite_one_as_the_largest_number() -> None:
    assert or_zero(math.nan) == 0.0
    assert or_zero(0.25) == 0.25
    assert math.isfinite(or_zero(math.inf))
