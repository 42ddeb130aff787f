"""Compares every planted fault with one process and with the same layout, and every clean layout with each other.

    python -m bench.layouts OUT [--half 0|1] [--only TEXT]

A fault counts as exact where the call that holds it is the first suspect; `EXPECTED` says which calls those are. Every
second fault (`--half 1`) is kept for the end, when no rule is changed any more.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numscope as ns
from bench.layouts import jobs

# Fault → the call (and, after @, the rank) that holds it; an alternative for each name that is as right.
EXPECTED = {
    "tanh": r"gelu",
    "tanh_on_rank_1": r"gelu.*@1",
    "not_synchronised": r"Optimizer|all_reduce|parameters",
    "summed_for_mean": r"all_reduce|div",
    "data_of_rank_0": r"^Data.*@1|embedding.*@1|chunk.*@1",
    "bit_flip_on_rank_1": r"up.*weight.*@1|blocks\.1\.mlp\.up.*@1|linear.*@1|Parameter.*@1",
    "rate_on_rank_1": r"Optimizer.*@1",
    "eps": r"layer_norm",
    "norm_eps": r"layer_norm.*@1",
    "loss_doubled": r"mul",
    "labels_off_on_rank_1": r"cross_entropy.*@1|roll.*@1",
    "scale_of_all_heads": r"div|truediv",
    "reduced_in_bf16": r"reduce_scatter|bfloat16|copy|Optimizer",
    "not_reduced": r"all_reduce|Sum|add",
    "reduced_twice": r"all_reduce|Sum",
    "bias_on_every_rank": r"linear|Sum|all_reduce|add",
    "gradient_not_reduced": r"Copy|clone|all_reduce|linear.*backward|layer_norm.*backward",
    "shard_of_the_other_rank": r"\.q\b.*|linear.0|parameters",
    "mlp_off_on_rank_1": r"mul.*@1",
    "norms_not_reduced": r"Optimizer|all_reduce|norm",
    "gathered_in_reverse": r"cat|Gather|all_gather",
    "positions_of_rank_0": r"arange|chunk|getitem|embedding",
    "range_off_by_one": r"ge|lt|sub|add",
    "total_not_reduced": r"all_reduce|Sum|log",
    "wanted_not_reduced": r"all_reduce|Sum|sub|rsub",
    "positions_not_zigzag": r"arange|chunk|getitem|embedding|cat",
    "mask_in_local_order": r"arange|lt|masked_fill",
    "tokens_not_put_back": r"index_copy|mul|zeros_like",
    "gate_forgotten": r"mul",
    "experts_not_divided": r"Optimizer|div",
    "micro_batches_summed": r"div|Optimizer",
    "rounded_between_stages": r"bfloat16|float",
}


def answer(out: str, target: str, reference: str) -> tuple[str, str, str, str]:
    """Return the verdict of a comparison, its first suspect with its rank, the reason, and the share of gradients measured."""
    try:
        found = ns.compare(os.path.join(out, target), os.path.join(out, reference))
    except Exception as error:  # a benchmark goes on
        return f"ERROR {type(error).__name__}", "", str(error)[:200], ""
    origin = found.origin
    name = f"{origin.call}@{origin.rank}" if origin else ""
    return found.verdict, name, found.report.reason, _gradients(found)


def _gradients(found: ns.Comparison) -> str:
    """Return how many of the gradients that reach optimizers were measured."""
    pairs = found.pairs.select(["target_name", "relative_l2"]).to_pylist()
    shown = [row["relative_l2"] for row in pairs if re.match(r"Optimizer.*parameters_grad", row["target_name"] or "")]
    return f"{sum(value is not None and value == value for value in shown)}/{len(shown)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.layouts", description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--only", default="")
    parser.add_argument("--kinds", default="clean,other,same")
    options = parser.parse_args()
    missing = [name for name in names() if not Path(options.out, name).exists()]
    if missing:
        jobs.main(options.out, missing)
    tasks = [task for task in pairs(options.kinds.split(",")) if options.only in f"{task[1]}|{task[2]}"]
    if options.half is not None:
        tasks = [task for number, task in enumerate(tasks) if task[0] == "clean" or half_of(task[1]) == options.half]
    tally: dict[str, list[int]] = {}
    with ProcessPoolExecutor(2) as workers:
        results = workers.map(answer, *zip(*[(options.out, target, reference) for _, target, reference in tasks]))
        for (kind, target, reference), (verdict, name, reason, gradients) in zip(tasks, results):
            fault = target.partition(".")[2]
            if kind == "clean":
                right = verdict in ("equivalent", "identical")
                detected = not right
            else:
                detected = verdict == "diverged"
                right = detected and re.search(EXPECTED[fault], name) is not None
            count = tally.setdefault(kind, [0, 0, 0])
            count[0] += 1
            count[1] += detected
            count[2] += right
            mark = "ok  " if right else "seen" if detected and kind != "clean" else "MISS"
            print(
                f"{mark} {kind:5} {target:28} {reference:8} {verdict:11} {gradients:8} {name:50} {reason[:150]}",
                flush=True,
            )
    for kind, (total, seen, right) in tally.items():
        print(f"{kind}: {total} pairs, {seen} diverged, {right} right")
    return 0


def names() -> list[str]:
    faults = [f"{layout}.{fault}" for layout, faults in jobs.FAULTS.items() for fault in faults]
    return [
        *jobs.CLEAN,
        *jobs.CLEAN_OF_FOUR,
        *(f"{layout}~" for layout in jobs.CLEAN if layout not in ("one", "moe")),
        *faults,
    ]


def half_of(target: str) -> int:
    faults = [f"{layout}.{fault}" for layout, faults in jobs.FAULTS.items() for fault in faults]
    return faults.index(target) % 2


def pairs(kinds: list[str]) -> list[tuple[str, str, str]]:
    """Return (kind, target, reference): clean layouts with each other, faults with one process, faults with their layout."""
    tasks: list[tuple[str, str, str]] = []
    base = {"ep": "moe"}
    if "clean" in kinds:
        for layout in jobs.CLEAN[2:]:
            tasks += [("clean", layout, base.get(layout, "one")), ("clean", base.get(layout, "one"), layout)]
            tasks.append(("clean", f"{layout}~", layout))
        for layout in jobs.CLEAN_OF_FOUR:
            tasks += [("clean", layout, "one"), ("clean", layout, "fsdp"), ("clean", "tp", layout)]
        some = ("ddp", "fsdp", "tp", "sp", "gpipe")
        tasks += [("clean", target, reference) for target in some for reference in some if target != reference]
    for kind in ("other", "same"):
        for layout, faults in jobs.FAULTS.items() if kind in kinds else ():
            reference = base.get(layout, "one") if kind == "other" else layout
            tasks += [(kind, f"{layout}.{fault}", reference) for fault in faults]
    return tasks


if __name__ == "__main__":
    sys.exit(main())
