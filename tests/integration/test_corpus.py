"""Pairs of runs that were recorded on a GPU and a CPU (tests/corpus): what CI without a GPU can hold to."""

from __future__ import annotations

import json
from pathlib import Path

from bench.devices.__main__ import failures, judge_all
from bench.devices.archive import unpacked

CORPUS = Path(__file__).parents[1] / "corpus" / "devices"


def test_no_pair_is_judged_worse_than_the_ledger_says(tmp_path: Path) -> None:
    # `python -m bench.devices judge tests/corpus/devices --ledger …/ledger.json` writes it: it may only shrink.
    known = json.loads((CORPUS / "ledger.json").read_text(encoding="utf-8"))
    results = judge_all(unpacked(CORPUS, tmp_path), "*")
    assert len(results) >= 250
    new = {pair: how for pair, how in failures(results).items() if known.get(pair) not in (how, "missed")}
    assert not new, [one for one in results if one["pair"] in new]
