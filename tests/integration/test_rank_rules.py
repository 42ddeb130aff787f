"""Rules between the ranks of one run: a clean job has no remark, and a broken rule is said with what is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import numscope as ns
from numscope.check.remarks import remarks


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("rules")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = str(Path(__file__).with_name("rank_rules.py"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, str(out)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {path.name: ns.open_run(path) for path in out.iterdir() if path.is_dir()}


@pytest.mark.parametrize("job", ["dp", "tp", "stages", "statistics", "collectives.none"])
def test_a_clean_job_has_no_remark(job, runs):
    assert remarks(runs[job]) == []


BROKEN = [
    ("collectives.reduce_scatter", "collective", 0, [0, 1], "reduce_scatter of 2 ranks gives what they did not"),
    ("dp.same_data", "same_work", 0, [0, 1], "their data are the same"),
    ("dp.not_reduced", "replicas", 0, [0, 1], "norm.weight of ranks 0 and 1 began the same"),
    ("dp.not_reduced", "replicas", 0, [0, 1], "no all-reduce over ranks 0 and 1 follows (data parallelism)"),
    ("dp.rate", "replicas", 0, [0, 1], "lr is 0.001 on rank 0, 0.002 on rank 1"),
    ("dp.state", "replicas", 0, [0, 1], "the optimizers' exp_avg was not before the step"),
    ("dp.written", "replicas", 2, [1], "up.weight changed between steps 1 and 2 on rank 1 alone"),
    (
        "dp.another_start",
        "replicas",
        0,
        [0, 1],
        "enter.weight has the same gradient on ranks 0 and 1, and other values",
    ),
    ("tp.same_dropout", "dropout", 4, [0, 1], "each rank needs a random state of its own"),
    ("tp.other_dropout", "dropout", 0, [0, 1], "needs the same random state there"),
    ("tp.gradient_in_parts", "replicas", 0, [0, 1], "no all-reduce over ranks 0 and 1 follows (tensor parallelism)"),
    ("stages.untied", "tied", 0, [0, 1], "tokens.weight on rank 0 and head.weight on rank 1 began the same"),
    ("statistics.own_statistics", "buffers", 1, [0, 1], "norm.running_mean, module.norm.running_var"),
]


@pytest.mark.parametrize(("job", "rule", "step", "ranks", "words"), BROKEN)
def test_a_broken_rule_is_said_with_what_is_missing(job, rule, step, ranks, words, runs):
    found = remarks(runs[job])
    assert [(remark.rule, remark.step, remark.ranks) for remark in found] == [(rule, step, ranks)]
    assert words in found[0].text


@pytest.mark.parametrize("way", ["fsdp2", "fsdp1", "mesh", "marks"])
def test_kept_pieces_of_a_tensor_make_the_whole_where_a_library_declares_how(way, runs):
    run, one = runs[f"pieces.{way}"], runs["pieces.one"]
    for name in ("up.weight", "up.bias", "down.weight", "down.bias"):
        for head in ("parameters", "parameters_grad", "output"):
            expected = one.tensor(f"Optimizer.SGD.step.0.{head}.{name}")
            label = f"_fsdp_wrapped_module.{name}" if way == "fsdp1" else name
            found = run.tensor(f"Optimizer.SGD.step.0.{head}.{label}")
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
            if way != "fsdp1":  # of which a rank may have none of a small parameter
                assert found.size >= run.tensor(f"Optimizer.SGD.step.0.{head}.{label}", rank=0).size


def test_a_whole_of_which_a_piece_was_not_kept_is_not_made_up(runs, tmp_path):
    part = tmp_path / "part"
    shutil.copytree(runs["pieces.marks"].path, part)
    shutil.rmtree(part / "rank1")
    with pytest.raises(ns.NotKeptError, match="rank=0 gives the one of rank 0"):
        ns.open_run(part).tensor("Optimizer.SGD.step.0.parameters.up.weight")
