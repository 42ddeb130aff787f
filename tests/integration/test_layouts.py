"""Runs of one job in other layouts are equivalent, and a fault in one of them is named where it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import numscope as ns
from numscope.compare.comparison import compare, compare_part, merge_parts
from numscope.compare.parts.shares import Share


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("layouts")
    script = Path(__file__).with_name("layouts.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(out)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {path.name: ns.open_run(path) for path in out.iterdir() if path.is_dir()}


ALIKE = [
    ("micro", "one"),
    ("ddp", "one"),
    ("one", "ddp"),
    ("last", "ddp"),
    ("each", "last"),
    ("turns", "halves"),
    ("wrapped", "one"),
    ("sharded", "ddp"),
    ("sharded", "one"),
    ("one", "sharded"),
    ("tensor", "one"),
    ("tensor", "sharded"),
    ("pipeline", "one"),
    ("ddp", "pipeline"),
]


@pytest.mark.parametrize(("target", "reference"), ALIKE)
def test_another_layout_of_the_same_job_is_equivalent(target, reference, runs):
    found = ns.compare(runs[target], runs[reference])
    assert found.verdict == "equivalent", found.report.reason
    assert found.report.coverage["gradients_measured"] == 1


@pytest.mark.parametrize(
    ("target", "reference"), [("ddp", "one"), ("sharded", "ddp"), ("tanh", "one"), ("forgot_one", "ddp")]
)
def test_the_answer_of_parts_is_that_of_one_piece(target, reference, runs, tmp_path):
    pair = runs[target], runs[reference]
    parts = [compare_part(*pair, Share(number, 3), tmp_path).path for number in (1, 2, 3)]
    found, whole = merge_parts(*pair, parts), compare(*pair)
    assert found.report.to_dict() == whole.report.to_dict()
    assert found.calls.equals(whole.calls)
    assert found.pairs.equals(whole.pairs)


def test_the_report_says_that_the_runs_are_given_parts_of_a_batch(runs):
    assert (
        "parts of other sizes of a batch ([2, 6] against [8, 6])"
        in ns.compare(runs["micro"], runs["one"]).report.reason
    )


FAULTS = [
    ("tanh", "one", "Functional.gelu.0.forward", "argument approximate 'tanh' against 'none'"),
    ("forgot", "one", "Optimizer.AdamW.step.0", "the mean over the ranks is right: no collective makes it"),
    ("forgot_one", "one", "Optimizer.AdamW.step.0", "parameters_grad.norm.weight is off"),
    ("summed", "one", "Optimizer.AdamW.step.0", "10 of 11 gradients are 2 times the reference's"),
    ("overlap", "one", "Tensor.chunk.0.forward", "Data.DistributedDataParallel.0.input then gets output.0 off"),
    ("sharded_eps", "one", "Functional.layer_norm.0.forward", "argument eps 0.01 against 1e-05"),
    ("tensor_tanh", "one", "Functional.gelu.0.forward", "argument approximate 'tanh' against 'none'"),
    ("tensor_tanh", "tensor", "Functional.gelu.0.forward", "inputs identical"),
    ("pipeline_rounded", "pipeline", "Tensor.bfloat16.0.forward", "only the target has this call"),
]


@pytest.mark.parametrize(("target", "reference", "call", "words"), FAULTS)
def test_a_fault_in_another_layout_is_named_where_it_is(target, reference, call, words, runs):
    found = ns.compare(runs[target], runs[reference])
    assert found.verdict == "diverged"
    assert (found.origin.call, found.origin.step) == (call, 0)
    assert words in found.origin.reason


def test_what_a_collective_brings_from_another_rank_comes_after_that_ranks_own_origin(runs):
    suspects = ns.compare(runs["pipeline_rounded"], runs["pipeline"]).suspects
    assert suspects[0].rank == 1
    assert (suspects[1].call, suspects[1].kind, suspects[1].rank) == ("Distributed.recv.0.forward", "collective", 0)
    assert "it brings what another rank gave it" in suspects[1].reason


@pytest.mark.parametrize("layout", ["sharded", "tensor"])
def test_what_is_written_through_a_dtensor_is_measured_anew_in_every_step(layout, runs):
    rows = [row for row in runs[layout].tensors.to_pylist() if row["name"].startswith("Optimizer.") and row["elements"]]
    kept = {(row["step"], row["rank"], row["slot"]): row["hash"] for row in rows}
    written = [key for key in kept if key[2].startswith("output.")]
    assert len({step for step, _, _ in written}) == 2
    for step, rank, slot in written:
        assert kept[step, rank, slot] != kept[step, rank, slot.replace("output", "parameters")]


def test_the_result_of_a_functional_collective_is_measured_once_it_was_waited_for(runs):
    assert ns.compare(runs["tensor_again"], runs["tensor"]).verdict == "identical"
    rows = [row for row in runs["tensor"].tensors.to_pylist() if row["rank"] == 0 and row["step"] == 0]
    by_name = {row["name"]: row for row in rows}
    assert by_name["Distributed.all_reduce.0.forward.output.0"]["note"] == "not waited for"
    given = by_name["Tensor.add.1.forward.input.1"]
    parts = [
        row
        for row in runs["tensor"].tensors.to_pylist()
        if row["step"] == 0 and row["name"] == "Distributed.all_reduce.0.forward.input.0"
    ]
    assert given["mean"] == pytest.approx(sum(row["mean"] for row in parts), rel=1e-4)


# The jobs of bench.layouts: a tiny GPT, a fault a line ------------------------------------------------------------------

JOBS = [
    *("one", "gpipe", "gpipe~", "gpipe.tanh", "sp", "vp", "cp", "gpipe.norm_eps"),
    *("hsdp@4", "fsdp_tp@4", "fsdp_tp@4.eps"),
    *("ddp.tanh_on_rank_1", "ddp.rate_on_rank_1", "fsdp.loss_doubled", "fsdp.data_of_rank_0", "tp.not_reduced"),
]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    out = tmp_path_factory.mktemp("jobs")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "bench.layouts.jobs", str(out), *JOBS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    return {path.name: ns.open_run(path) for path in out.iterdir() if path.is_dir()}


def test_a_pipeline_infers_shapes_on_memory_that_nobody_wrote_and_that_is_no_part_of_the_run(jobs):
    assert ns.compare(jobs["gpipe~"], jobs["gpipe"]).verdict == "identical"


def test_what_a_stage_is_given_by_another_rank_is_no_data_of_its_own(jobs):
    origin = ns.compare(jobs["gpipe.tanh"], jobs["gpipe"]).origin
    assert (origin.call, origin.rank, origin.step) == ("Functional.gelu.0.forward", 0, 0)


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        ("sp", "one"),
        ("vp", "one"),
        ("cp", "one"),
        ("one", "gpipe"),
        ("sp", "gpipe"),
        ("hsdp@4", "one"),
        ("fsdp_tp@4", "one"),
        ("fsdp_tp@4", "hsdp@4"),
    ],
)
def test_layouts_of_one_model_are_equivalent_to_each_other(target, reference, jobs):
    found = ns.compare(jobs[target], jobs[reference])
    assert found.verdict == "equivalent", found.report.reason
    assert found.report.coverage["gradients_measured"] == 1


FAULTS_OF_JOBS = [
    ("ddp.tanh_on_rank_1", "Functional.gelu.0.forward", 1, "approximate 'tanh' against 'none'"),
    ("ddp.rate_on_rank_1", "Optimizer.AdamW.step.0", 1, "inputs identical"),
    ("fsdp.loss_doubled", "Tensor.mul.0.forward", 0, "only the target has this call"),
    ("fsdp.data_of_rank_0", "Tensor.chunk.1.forward", 1, "only the target has this call"),
    ("tp.not_reduced", "Tensor.add.1.forward", 0, "blocks.0.attention"),
    ("fsdp_tp@4.eps", "Functional.layer_norm.0.forward", 0, "argument eps 0.001 against 1e-05"),
    ("gpipe.norm_eps", "Functional.layer_norm.2.forward", 1, "argument eps 0.001 against 1e-05"),
]


@pytest.mark.parametrize(("target", "call", "rank", "words"), FAULTS_OF_JOBS)
def test_a_fault_on_any_rank_is_followed_to_its_call_against_one_process(target, call, rank, words, jobs):
    origin = ns.compare(jobs[target], jobs["one"]).origin
    assert (origin.call, origin.rank, origin.step) == (call, rank, 0)
    assert words in origin.reason
