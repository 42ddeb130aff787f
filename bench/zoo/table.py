"""The results as text."""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]


def summary(results: list[Result]) -> Result:
    """Return the totals; `failures` counts the cases that miss the requirement or could not run."""
    bugs = [result for result in results if not result["control"]]
    controls = [result for result in results if result["control"]]
    ranked = [result for result in bugs if "rank1" in result]
    alarms = [result["case"] for result in controls if result["detected"]] if ranked or _judged(controls) else []
    errors = [result["case"] for result in results if "error" in result]
    missed = [result["case"] for result in ranked if not result["detected"]]
    wrong = [result["case"] for result in results if result.get("right") is False]
    return {
        "bugs": len(bugs),
        "controls": len(controls),
        "detected": len(ranked) - len(missed),
        "rank1": sum(result["rank1"] for result in ranked),
        "rank3": sum(result["rank3"] for result in ranked),
        "false_alarms": alarms,
        "missed": missed,
        "errors": errors,
        "two_faults": sum("second" in result for result in ranked),
        "both_named": sum(result["rank1"] and result["second"] for result in ranked if "second" in result),
        "chains_expected": sum("chain_right" in result for result in ranked),
        "chains": sum(result.get("chain_right", False) for result in ranked),
        "mechanism": sum(result["mechanism_right"] for result in ranked),
        "repair": sum(result["repair_right"] for result in ranked),
        "repairs_expected": sum(result["repair_expected"] for result in ranked),
        "repairs_of_controls": [result["case"] for result in controls if result.get("repair")],
        "failures": len(set(alarms) | set(errors) | set(missed) | set(wrong)),
    }


def _judged(results: list[Result]) -> bool:
    return any("verdict" in result for result in results)


def plain(results: list[Result], totals: Result) -> str:
    """Return a line per case: the relative difference of the values that the two variants print."""
    rows = []
    for result in results:
        state = "ok" if result["right"] else "WRONG"
        what = result.get("error") or f"difference {result['difference']}  {result['seconds']:.1f} s"
        rows.append(f"{state:6}{result['case']:32}{what}")
    rows.append(f"{totals['bugs']} bugs, {totals['controls']} controls, {totals['failures']} not as they should be")
    return "\n".join(rows)


def judged(results: list[Result], totals: Result, diagnosed: bool) -> str:
    """Return a line per case, two more where the origin is not the true one, and the totals."""
    rows = [f"{'case':32}{'verdict':12}{'rank':6}predicted origin"]
    for result in results:
        rows += _rows(result, diagnosed)
    bugs = totals["bugs"]
    rows += [
        "",
        f"keep={totals['keep']}, {totals['seconds']} s: {bugs} bugs, {totals['controls']} controls",
        f"detected {totals['detected']}/{bugs}, origin at rank 1 {totals['rank1']}/{bugs} "
        f"({totals['rank1'] / max(bugs, 1):.0%}), within rank 3 {totals['rank3']}/{bugs}, "
        f"false alarms {len(totals['false_alarms'])}/{totals['controls']}, errors {len(totals['errors'])}",
    ]
    if totals["two_faults"] or totals["chains_expected"]:
        rows.append(
            f"both of two faults named {totals['both_named']}/{totals['two_faults']}, "
            f"the cause behind the use {totals['chains']}/{totals['chains_expected']}"
        )
    if diagnosed:
        rows.append(
            f"mechanism right {totals['mechanism']}/{bugs}, repair right {totals['repair']}/{bugs} "
            f"({totals['repairs_expected']} have one), repairs of controls {len(totals['repairs_of_controls'])}"
        )
    return "\n".join(rows)


def _rows(result: Result, diagnosed: bool) -> list[str]:
    if "error" in result:
        return [f"{result['case']:32}ERROR       {result['error'][:300]}"]
    if result["control"]:
        rank = "ALARM" if result["detected"] else "-"
    else:
        rank = "1" if result["rank1"] else "2-3" if result["rank3"] else "no"
    rows = [f"{result['case']:32}{result['verdict']:12}{rank:6}{result['predicted']}"]
    if rank in ("2-3", "no"):
        rows += [f"{'':50}true: {result['true']}"]
        rows += [f"{'':50}also: {suspect}" for suspect in result["suspects"][1:]]
    if rank in ("2-3", "no", "ALARM"):
        rows += [f"{'':50}said: {result['reason']}"]
    if result.get("second") is False:
        rows.append(f"{'':50}the second fault is not among: {'; '.join(result['suspects'][1:])}")
    if result.get("chain_right") is False:
        rows.append(f"{'':50}chain: {' <- '.join(result['chain'] or ())}")
    if diagnosed and not result["control"]:
        mark = "" if result["mechanism_right"] else " (wrong)"
        rows += [f"{'':50}mechanism {result['mechanism']}{mark}; repair: {result['repair']}"]
    return rows
