"""A part that was compared with nothing makes a comparison incomplete; a part that the user left out does not."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest
import torch
from torch import nn

import numscope as ns

ROOT = Path(__file__).parents[2]
HOW = {
    **dict.fromkeys(("whole", "again", "short", "crash", "crash early", "crash after"), None),
    "first": 0,
    "two": [0, 1],
}


def train(out: Path, how: str, steps: object = None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    with ns.capture(out / how, model, steps=steps) as cap:
        for step in range(2 if how == "short" else 5):
            x = torch.randn(4, 8)
            optimizer.zero_grad()
            if how == "crash early":
                model[0](x)
                raise ValueError("no more data")
            loss = model(x).square().mean()
            if how == "killed" and step == 2:
                cap._recorder.flush()
                cap._recorder.writer.flush()
                os.kill(os.getpid(), 9)
            if how == "crash after" and step == 2:
                loss.backward()
                optimizer.step()
                cap.step()
                raise ValueError("could not save")
            if how == "crash" and step == 2:
                raise ValueError("no more data")
            loss.backward()
            optimizer.step()
            cap.step()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for how, steps in HOW.items():
        with contextlib.suppress(ValueError):
            train(out, how, steps)
    killed = f"from pathlib import Path; from {__name__} import train; train(Path({str(out)!r}), 'killed')"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", killed], env=environment).returncode == -9
    return out


INCOMPLETE = [
    ("short", "whole", "identical in the 2 of 5 steps that both have"),
    ("whole", "short", "identical in the 2 of 5 steps that both have"),
    ("killed", "whole", "identical in the 2 of 5 steps that both have"),
    ("crash", "whole", "the target ended with ValueError in step 2; identical in the 2 of 5 steps that both have"),
    ("whole", "crash", "identical in the 2 of 5 steps that both have"),
    ("crash after", "whole", "the target ended with ValueError after step 2; identical in the 3 of 5 steps that both"),
    (
        "crash early",
        "whole",
        "the target ended with ValueError in step 0; identical in the 4 of 22 calls that both have",
    ),
]


@pytest.mark.parametrize(("target", "reference", "headline"), INCOMPLETE)
def test_a_run_that_lacks_steps_or_was_cut_off_is_incomplete(target, reference, headline, runs):
    found = ns.compare(runs / target, runs / reference)
    assert found.verdict == "incomplete"
    assert found.report.reason.startswith(headline)
    assert found.report.coverage["missing"]
    rest = ns.compare(runs / target, runs / reference, allow_incomplete=True)
    assert rest.verdict in ("identical", "equivalent")
    assert rest.report.coverage["missing"] == found.report.coverage["missing"]


def test_a_crash_after_the_last_step_is_said_though_all_steps_are_there(runs):
    found = ns.compare(runs / "crash after", runs / "crash after")
    assert found.report.reason.startswith(
        "the target ended with ValueError after step 2; identical in what was compared"
    )
    assert ns.compare(runs / "crash after", runs / "whole", steps=[0, 1]).verdict == "identical"


def test_the_first_line_says_what_both_have_and_the_exit_status_is_2(runs, tmp_path):
    line = [sys.executable, "-m", "numscope", "compare", str(runs / "short"), str(runs / "whole")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([*line, "--json", str(tmp_path / "r.json")], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.splitlines()[0].strip() == "INCOMPLETE: identical in the 2 of 5 steps that both have"
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "incomplete"
    piped = subprocess.run([*line, "--json", "-"], env=environment, capture_output=True, text=True)
    assert json.loads(piped.stdout)["coverage"]["missing"] == ["only the reference has steps 2, 3, 4"]
    assert subprocess.run([*line, "--allow-incomplete"], env=environment, capture_output=True).returncode == 0
    assert subprocess.run([*line, "--step", "0"], env=environment, capture_output=True).returncode == 0


def test_what_the_user_chose_is_no_lack(runs):
    assert ns.compare(runs / "again", runs / "whole").verdict == "identical"
    assert ns.compare(runs / "killed", runs / "whole", steps=[0, 1]).verdict == "identical"
    assert ns.compare(runs / "crash", runs / "whole", steps=[0, 1]).verdict == "identical"
    assert ns.compare(runs / "first", runs / "whole").verdict == "identical"
    assert ns.compare(runs / "whole", runs / "two").verdict == "identical"
    assert ns.compare(runs / "short", runs / "whole", steps=[0, 3]).verdict == "incomplete"


def test_a_training_run_has_all_its_gradients_measured(runs):
    assert ns.compare(runs / "again", runs / "whole").report.coverage["gradients_measured"] == 1.0


RANKS = """
import sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
import numscope as ns


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.norm, self.head = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.norm(torch.tanh(self.enter(x))))


def train(path, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    with ns.capture(path, model) as cap:
        for _ in range(2):
            x = torch.randn(4, 8, generator=generator)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            cap.step()


def net():
    torch.manual_seed(0)
    return Net()


def work(rank, out):
    dist.init_process_group("gloo", store=dist.FileStore(f"{out}/store", 2), rank=rank, world_size=2)
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    train(f"{out}/ddp", DistributedDataParallel(net()))
    train(f"{out}/fsdp2", fully_shard(net()))
    dist.destroy_process_group()


if __name__ == "__main__":
    train(f"{sys.argv[1]}/one", net())
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ranks")
    (out / "job.py").write_text(RANKS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(out / "job.py"), str(out)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_a_rank_whose_folder_is_gone_is_said_on_either_side(ranks, tmp_path):
    shutil.copytree(ranks / "ddp", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "rank1")
    for target, reference, side in (("half", "ddp", "target"), ("ddp", "half", "reference")):
        folders = [tmp_path / name if name == "half" else ranks / name for name in (target, reference)]
        found = ns.compare(*folders)
        assert found.verdict == "incomplete"
        assert found.report.reason.startswith("identical in the 1 of 2 ranks that both have")
        assert found.report.coverage["missing"] == [f"the {side} has no folder of rank 1, of 2"]
        assert ns.compare(*folders, ranks=0).verdict == "identical"
    both = ns.compare(tmp_path / "half", tmp_path / "half")
    assert both.verdict == "incomplete"  # the job had two ranks, and nobody chose one


def test_shards_of_all_ranks_are_compared_with_the_whole(ranks):
    found = ns.compare(ranks / "fsdp2", ranks / "one")
    assert (found.verdict, found.report.coverage["gradients_measured"]) == ("equivalent", 1.0)


def test_shards_of_one_rank_against_whole_gradients_are_not_called_equivalent(ranks):
    found = ns.compare(ranks / "fsdp2", ranks / "one", ranks=0)
    assert found.verdict == "incomplete"
    assert found.report.coverage["gradients_measured"] == 0.0
    assert any("gradients were compared with nothing" in one for one in found.report.coverage["missing"])
    pairs = found.pairs
    blank = pairs.filter(pc.is_null(pairs["relative_l2"]))
    assert blank.num_rows
    assert set(blank["verdict"].to_pylist()) <= {None, "origin", "inherited"}


def test_a_copy_of_the_gradients_on_a_further_rank_is_no_lack(ranks):
    found = ns.compare(ranks / "ddp", ranks / "one")
    assert found.report.coverage["gradients_measured"] == 1.0


def test_a_result_of_another_shape_that_leads_to_a_compared_one_is_no_lack(tmp_path: Path) -> None:
    """In inference mode tensors have no versions: what a call is given is known by its bits alone."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

    def masked(width: int) -> torch.Tensor:
        wide = torch.cat([x, torch.full((3, width - 4), 1e9)], 1) if width > 4 else x + 0.0
        return (wide < 1e3).to(torch.float32).sum(1) + wide[:, :4].sum(1)

    for name, width in (("wide", 7), ("plain", 4)):
        with ns.capture(tmp_path / name), torch.inference_mode():
            masked(width)
    found = ns.compare(tmp_path / "wide", tmp_path / "plain")
    assert found.verdict == "equivalent", found.report.reason
