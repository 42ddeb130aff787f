"""The facts that the pages are told of a real comparison and of a run alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import numscope as ns
from numscope.check.checking import check
from numscope.core.errors import SettingsError
from numscope.core.report import plain
from numscope.report.pages.summary import manifest_differences
from numscope.report.pages.tables import Filter
from numscope.store import manifest
from numscope.store.formats.foreign import Dump, ForeignCall, ForeignStep, ForeignTensor
from numscope.store.formats.foreign import write_run as import_dump
from numscope.store.writer import RunWriter
from numscope.view import one_run, tree
from numscope.view.session import Session
from tests.unit.store.batches import cut_off, write_run

ORIGIN = "Functional.leaky_relu.1.forward"


def row(session: Session, name: str) -> int:
    return int(session.calls.rows(Filter(text=name, step=(0,)))[0])


def test_the_summary_tells_origin_facets_and_both_runs(compared: Session) -> None:
    told = compared.summary
    assert told["mode"] == "comparison"
    assert told["report"]["origin"]["call"] == ORIGIN
    assert told["origin_row"] == row(compared, ORIGIN)
    user = next(frame for frame in told["stack"] if frame["user"])
    assert user["code"].startswith("x = nn.functional.leaky_relu")
    assert told["tables"]["calls"]["facets"]["step"] == [0, 1]
    assert "layers.1" in told["modules"]
    assert told["target"]["steps"] == [0, 1]


def test_a_call_has_arguments_slots_and_stacks_of_both_sides(compared: Session) -> None:
    detail = compared.call(row(compared, ORIGIN))
    assert "0.2" in str(detail["target"]["arguments"])
    assert "0.01" in str(detail["reference"]["arguments"])
    assert {slot["slot"] for slot in detail["slots"]} >= {"input.0", "output.0"}
    assert all(len(slot["tensor"]["hash"]) == 16 for slot in detail["target"]["slots"])
    with pytest.raises(SettingsError):
        compared.call(10**6)


def test_the_data_of_both_sides_is_that_of_the_runs(compared: Session) -> None:
    duo, missing = compared.data(row(compared, ORIGIN), "output.0")
    assert missing == {}
    np.testing.assert_array_equal(duo.target, compared.target.tensor(f"{ORIGIN}.output.0", step=0))
    np.testing.assert_array_equal(duo.reference, compared.reference.tensor(f"{ORIGIN}.output.0", step=0))


def test_data_that_was_not_kept_says_how_to_keep_it(alone: Session) -> None:
    duo, missing = alone.data(row(alone, "Torch.exp.0.forward"), "output.0")
    assert duo.target is None
    assert "tensors=[" in missing["target"]


def test_the_groups_of_the_tree_hold_every_call_once(compared: Session) -> None:
    seen: list[int] = []
    waiting = ["root"]
    while waiting:
        group = compared.group(0, 0, waiting.pop(), "forward")
        for node in group["nodes"]:
            seen += [node["row"]] if node["row"] is not None else []
            waiting += [node["id"]] if node["opens"] else []
    wanted = {row for phase in ("forward", "input") for row in compared.calls.rows(Filter(step=(0,), phase=(phase,)))}
    assert sorted(seen) == sorted(int(row) for row in wanted)


def test_edges_follow_the_tensors(compared: Session) -> None:
    place = compared.path(row(compared, ORIGIN))
    assert place["groups"][0] == "root"
    group = compared.group(0, 0, place["groups"][-1], "forward")
    name = {node["id"]: node["label"] for node in group["nodes"]}
    edges = {(name[a], name[b]) for a, b, _ in group["edges"]}
    assert ("Module.layers.1.Linear.forward.0", ORIGIN) in edges
    assert (ORIGIN, "Module.layers.2.Linear.forward.0") in edges
    assert all(on == ["reference", "target"] for _, _, on in group["edges"])


def test_calls_of_a_dump_that_shares_no_tensors_stand_in_their_order(tmp_path: Path) -> None:
    calls = [
        ForeignCall(f"Torch.{op}.0.forward", [(slot, ForeignTensor("float32", (2,), min=0, max=1, mean=0.5))])
        for op, slot in (("exp", "output.0"), ("log", "input.0"), ("sin", "input.0"))
    ]
    import_dump(tmp_path / "run", Dump("test", [ForeignStep(0, 0, calls)]))
    group = Session.of_run(ns.open_run(tmp_path / "run")).group(0, 0, "root", "forward")
    ids = [node["id"] for node in group["nodes"]]
    assert group["edges"] == [[ids[0], ids[1], ["order"]], [ids[1], ids[2], ["order"]]]


@pytest.mark.parametrize("count", [0, 1, 48, 49, 1000, 123_456])
def test_stretches_cover_a_group_of_any_size(count: int) -> None:
    cut = tree.stretches(tree.Stretch(0, count))
    assert len(cut) <= tree.MOST
    assert [a for a, _ in cut[1:]] == [b for _, b in cut[:-1]]
    assert sum(b - a for a, b in cut) == count


def test_an_unknown_group_is_the_users_mistake(compared: Session) -> None:
    for name in ("r999999", "../x", "root/a-b"):
        with pytest.raises(SettingsError):
            compared.group(0, 0, name, "forward")


def test_the_heatmap_of_ranks_and_steps_shows_the_worst(compared: Session) -> None:
    heat = compared.heat()
    assert (heat["steps"], heat["ranks"]) == ([0, 1], [0])
    assert heat["verdict"][0][0] == "origin"
    assert sum(heat["calls"][0]) == len(compared.calls)


def test_one_run_finds_the_innermost_call_that_made_infinities(alone: Session) -> None:
    check = alone.summary["check"]
    assert check["found"]
    assert check["origin"]["call"] == "Torch.exp.0.forward"
    assert check["chain"][0] == "Torch.exp.0.forward"
    assert len(check["chain"]) == len(check["chain_rows"]) > 1


def test_one_run_shows_what_check_finds(alone: Session) -> None:
    assert alone.target is not None
    found = check(alone.target)
    shown = alone.summary["check"]
    assert shown["origin"] == plain(found.to_dict())["origin"]
    assert shown["chain"] == [link.call for link in found.chain]
    table = alone.calls.table
    names = [table["target_name"][row].as_py() for row in shown["chain_rows"]]
    assert names == shown["chain"]
    assert table["verdict"].to_pylist().count("origin") == len(found.origins)
    assert table["verdict"].to_pylist().count("inherited") == found.inherited


def test_a_mask_is_no_finding_of_one_run(tmp_path: Path) -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(torch.eye(3, dtype=torch.bool), float("-inf")).softmax(-1)

    model = Masked()
    with ns.capture(tmp_path / "run", model):
        model(torch.randn(3, 3))
    session = Session.of_run(ns.open_run(tmp_path / "run"))
    assert session.summary["check"]["found"] is False
    assert set(session.calls.table["verdict"].to_pylist()) == {None}


def test_headroom_is_the_distance_to_the_largest_number(alone: Session) -> None:
    table = alone.calls.table.to_pylist()
    cell = next(item for item in table if item["target_name"] == "Module.layers.0.Linear.forward.0")
    assert cell["headroom"] == pytest.approx(np.log2(np.finfo(np.float32).max / cell["magnitude"]))
    assert one_run.largest("bfloat16") > 3e38
    assert one_run.largest("float8_e4m3fn") == 448
    assert np.isnan(one_run.largest("int64"))


def test_a_run_without_steps_is_shown_as_empty(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "none", rank=0, manifest=manifest.collect()):
        pass
    session = Session.of_run(ns.open_run(tmp_path / "none"))
    assert len(session.calls) == 0
    assert session.summary["check"]["found"] is False
    assert session.heat()["steps"] == []


def test_what_is_another_in_every_job_is_no_difference_at_the_start(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        RunWriter(tmp_path / name, rank=0, manifest={"job": name, "pid": seed, "seeds": {"torch": seed}}).close()
    told = manifest_differences(ns.open_run(tmp_path / "a"), ns.open_run(tmp_path / "b"))
    assert [row["name"] for row in told] == ["seeds.torch"]


def test_a_run_that_was_killed_in_its_first_step_shows_what_was_written(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=1)
    cut_off(tmp_path / "run")
    run = ns.open_run(tmp_path / "run")
    assert run.steps == []
    session = Session.of_run(run)
    assert len(session.calls) == run.calls.num_rows > 0
    assert session.call(0)["slots"]
