"""`numscope check` over stored runs: the first non-finite value, its origin, its way to the loss, rank by rank."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns
from numscope.__main__ import main
from numscope.check.checking import check
from numscope.check.headroom import FORMATS, headroom, near_misses, operators
from tests.integration.births import Block, captured, marked

HERE = Path(__file__).name


def exp_overflow(self: Any, x: torch.Tensor) -> torch.Tensor:
    x = self.parts[0](x)
    x = torch.exp(x.abs() * 1e4)  # origin
    x = self.parts[1](F.relu(x))
    return F.mse_loss(x, torch.zeros_like(x))


def masked_row(self: Any, x: torch.Tensor) -> torch.Tensor:
    allowed = torch.ones(3, 3, dtype=torch.bool).tril()
    allowed[1] = False
    scores = (self.parts[0](x) @ x.T).masked_fill(~allowed, float("-inf"))
    return (F.softmax(scores, dim=-1) @ x).sum()  # origin


def half_feed_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    wide = F.relu(self.parts[0](x * 100).half() * 100)
    return (wide * 100).float().sum()  # origin


def zero_by_zero(self: Any, x: torch.Tensor) -> torch.Tensor:
    x = self.parts[0](x)
    none = x - x
    return (none / none).sum()  # origin


def log_of_zero(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.log(self.parts[0](x) * 0).sum()  # origin


def constant_of_nan(self: Any, x: torch.Tensor) -> torch.Tensor:
    x = self.parts[0](x)
    return torch.where(x > 0, x, torch.tensor(math.nan)).sum()  # origin


def root_at_zero(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(self.parts[0](x) * 0).sum()  # origin


@pytest.mark.parametrize(
    ("work", "call", "phase"),
    [
        (exp_overflow, "Torch.exp.0.forward", "forward"),
        (masked_row, "Functional.softmax.0.forward", "forward"),
        (half_feed_forward, "Tensor.mul.2.forward", "forward"),
        (zero_by_zero, "Tensor.div.0.forward", "forward"),
        (log_of_zero, "Torch.log.0.forward", "forward"),
        (constant_of_nan, "Torch.where.0.forward", "forward"),
        (root_at_zero, "Torch.sqrt.0.backward", "backward"),
    ],
)
@pytest.mark.parametrize("tool", ["", "msprobe", "ptdbg"])
def test_the_origin_is_the_call_and_the_line(work: Any, call: str, phase: str, tool: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Block(work, nn.Linear(4, 4), nn.Linear(4, 4))
    run = captured(tmp_path / "run", model, lambda: model(torch.randn(3, 4)).backward())
    if tool:  # as if it had been another tool's dump
        assert main(["export", str(run), str(tmp_path / "dump"), "--format", tool]) == 0
        run = tmp_path / "back"
        assert main(["import", str(tmp_path / "dump"), str(run)]) == 0
    found = check(run)
    assert found.origin is not None
    assert (found.origin.call, found.origin.phase) == (call, phase)
    assert found.origin.source is not None
    assert (Path(found.origin.source.file).name, found.origin.source.line) == (HERE, marked(work))
    assert len(found.origins) == 1
    assert found.chain[0].call == call


def test_the_chain_leads_from_the_origin_to_the_loss(tmp_path: Path) -> None:
    model = Block(exp_overflow, nn.Linear(4, 4), nn.Linear(4, 4))
    run = captured(tmp_path / "run", model, lambda: model(torch.ones(3, 4) * 5).backward())
    chain = [link.call for link in check(run).chain]
    assert chain[0] == "Torch.exp.0.forward"
    assert chain[-1] == "Functional.mse_loss.0.forward"
    assert "Functional.linear.1.forward" in chain


def test_data_and_parameters_are_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    batch = torch.randn(2, 4)
    batch[0, 0] = math.nan
    data = check(captured(tmp_path / "data", model, lambda: model(batch))).origin
    assert data is not None
    assert (data.kind, data.call) == ("data", "Data.Sequential.0.input")
    with torch.no_grad():
        model[1].weight[0, 0] = math.inf
    parameter = check(captured(tmp_path / "parameter", model, lambda: model(torch.ones(2, 4)))).origin
    assert parameter is not None
    assert parameter.kind == "parameter"
    assert parameter.module == "1"


def test_later_steps_only_inherit(tmp_path: Path) -> None:
    model = Block(exp_overflow, nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def job() -> None:
        optimizer.zero_grad()
        model(torch.ones(3, 4) * 5).backward()
        optimizer.step()

    found = check(captured(tmp_path / "run", model, job, steps=3))
    assert [(origin.call, origin.step) for origin in found.origins] == [("Torch.exp.0.forward", 0)]
    assert found.inherited > 10


def test_masks_and_sound_training_are_silent(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    optimizer = torch.optim.AdamW(layer.parameters())

    def job() -> None:
        layer(torch.randn(2, 5, 16), src_mask=mask).sum().backward()
        optimizer.step()

    found = check(captured(tmp_path / "run", layer, job, steps=2))
    assert not found.found
    assert found.meant >= 2
    assert "Data.TransformerEncoderLayer.0.input" in found.first_meant


def test_masks_are_said_to_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Block(
        lambda self, x: self.parts[0](x).masked_fill(torch.eye(4) > 0, -math.inf).softmax(-1), nn.Linear(4, 4)
    )
    run = captured(tmp_path / "run", model, lambda: model(torch.ones(4, 4)))
    assert main(["check", str(run), "--json", str(tmp_path / "check.json")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "nothing is born non-finite"
    assert told[1].strip().startswith("1 tensor holds infinities that were put there")
    assert told[1].endswith("Tensor.masked_fill.0.forward.output.0")
    assert json.loads((tmp_path / "check.json").read_text())["meant"] == 1


def test_steps_that_a_scaler_skips_are_shown_as_such(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**124)

    def job() -> None:
        optimizer.zero_grad()
        scaler.scale((model(torch.ones(4, 8)) * 300).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    found = check(captured(tmp_path / "run", model, job, steps=4))
    assert not found.found
    assert found.skipped_steps[:1] == (0,)


def test_a_dump_that_does_not_count_says_so(tmp_path: Path) -> None:
    model = Block(exp_overflow, nn.Linear(4, 4), nn.Linear(4, 4))
    run = captured(tmp_path / "run", model, lambda: model(torch.ones(3, 4) * 5).backward())
    assert main(["export", str(run), str(tmp_path / "dump"), "--format", "msprobe"]) == 0
    assert main(["import", str(tmp_path / "dump"), str(tmp_path / "back")]) == 0
    origin = check(tmp_path / "back").origin
    assert origin is not None
    assert "some +inf of 12 elements" in origin.reason


def test_at_module_level_the_innermost_module_is_the_origin_and_those_around_it_inherit(tmp_path: Path) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.parts[1](self.parts[0](x)).sum()  # origin

    model = Block(work, nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model.parts[1].weight[0, 0] = math.nan
    found = check(captured(tmp_path / "run", model, lambda: model(torch.ones(3, 4)).backward(), level="module"))
    assert [origin.call for origin in found.origins] == ["Module.parts.1.Linear.forward.0"]
    assert found.origins[0].kind == "parameter"
    assert "the parameter weight of parts.1" in found.origins[0].reason
    assert found.origins[0].source is not None
    assert found.origins[0].source.line == marked(work)
    assert found.chain[-1].call == "Module.Block.forward.0"


class Divides(torch.optim.Optimizer):
    """Divides by a sum that is zero."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                none = parameter.grad - parameter.grad
                parameter.sub_(none / none)  # origin


@pytest.mark.parametrize(("level", "call"), [("mix", "Optimizer.Divides.step.0"), ("aten", "Aten.div.0.forward")])
def test_a_division_in_the_optimizer(level: str, call: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = Divides(model.parameters())

    def job() -> None:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()  # step

    origin = check(captured(tmp_path / "run", model, job, level=level)).origin
    assert origin is not None
    assert origin.call == call
    assert origin.source is not None
    assert origin.source.line == (marked(Divides) if level == "aten" else marked(job, "# step"))
    main(["check", str(tmp_path / "run")])
    told = " ".join(capsys.readouterr().out.split())
    way = "what Divides runs inside its step is not in a run of this level: a run of --level aten names the operator"
    assert (way in told) == (level == "mix")


def test_what_enters_as_data_is_followed_to_the_loss(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    batch = torch.randn(2, 4)
    batch[0, 0] = math.nan

    def job() -> None:
        F.mse_loss(model(batch), torch.zeros(2, 2)).backward()

    found = check(captured(tmp_path / "run", model, job, steps=2))
    assert [link.call for link in found.chain][:: len(found.chain) - 1] == [
        "Data.Sequential.0.input",
        "Functional.mse_loss.0.forward",
    ]


def test_the_same_origin_in_later_steps_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Block(masked_row, nn.Linear(4, 4))
    run = captured(tmp_path / "run", model, lambda: model(torch.randn(3, 4)), steps=4)
    assert main(["check", str(run)]) == 1
    told = capsys.readouterr().out
    assert "again in steps 1-3" in told
    assert "other origin" not in told


RANKS = """
import sys, torch, torch.distributed as dist, numscope as ns
from torch import nn

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Linear(4, 1)
wrapped, level = sys.argv[4] == "ddp", sys.argv[5]
if wrapped:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with ns.capture(sys.argv[3], model, on_error="raise", level=level) as cap:
    loss = model(torch.ones(2, 4))
    if rank == 1:
        loss = torch.sqrt(loss * 0)  # origin
    loss.sum().backward()
    for parameter in () if wrapped else model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    cap.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("wrapped", "level", "call", "through"),
    [
        ("by hand", "mix", "Torch.sqrt.0.backward", "Distributed.all_reduce.0.forward"),
        ("ddp", "mix", "Torch.sqrt.0.backward", "Optimizer.SGD.step.0"),
        ("ddp", "aten", "Aten.div.0.backward", ""),
    ],
)
def test_a_nan_from_another_rank_is_inherited(
    wrapped: str, level: str, call: str, through: str, tmp_path: Path
) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    words = [str(tmp_path / "store"), str(tmp_path / "run"), wrapped, level]
    jobs = [
        subprocess.Popen([sys.executable, str(script), str(rank), *words], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    told = [job.communicate(timeout=120)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], told
    found = check(tmp_path / "run")
    assert found.origin is not None
    assert [(origin.call, origin.rank) for origin in found.origins] == [(call, 1)]
    line = next(n for n, text in enumerate(RANKS.splitlines(), 1) if "# origin" in text)
    assert found.origin.source is not None
    assert found.origin.source.line == line
    assert found.ranks[1].startswith("first")
    assert f"another rank through {through}" in found.ranks[0]
    assert found.chain[-1].call == "Optimizer.SGD.step.0"
    assert len(found.chain) > 3


def test_the_command_prints_the_tree_writes_json_and_tells_by_its_status(tmp_path: Path) -> None:
    model = Block(exp_overflow, nn.Linear(4, 4), nn.Linear(4, 4))
    run = captured(tmp_path / "run", model, lambda: model(torch.ones(3, 4) * 5).backward())
    command = [sys.executable, "-m", "numscope", "check", str(run), "--json", str(tmp_path / "check.json")]
    done = subprocess.run([*command, "--headroom", "fp16"], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "└─" in done.stdout
    assert done.stdout.startswith("FOUND  an infinity is born at Torch.exp.0.forward, step 0\n")
    assert "  made   output.0  float32 [3, 4]  12 +inf\n" in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 120
    assert f"{HERE}:{marked(exp_overflow)}" in done.stdout
    told = json.loads((tmp_path / "check.json").read_text())
    assert told["format"] == "numscope.check/1"
    assert told["found"] is True
    assert told["origin"]["call"] == told["chain"][0] == "Torch.exp.0.forward"
    assert told["operators"]["float32"]["Functional.linear"] == 2
    sound = captured(tmp_path / "sound", nn.Linear(2, 2), lambda: nn.Linear(2, 2)(torch.ones(1, 2)))
    done = subprocess.run([*command[:4], str(sound)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "nothing non-finite\n")
    done = subprocess.run([*command[:4], str(tmp_path / "none")], capture_output=True, text=True)
    assert done.returncode == 2


def test_a_run_without_numbers_is_not_said_to_be_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 2)
    run = captured(tmp_path / "run", model, lambda: model(torch.ones(1, 2)), keep="structure")
    assert main(["check", str(run)]) == 2
    assert "has no counts of tensors" in capsys.readouterr().err


def test_headroom_names_the_calls_that_a_precision_cannot_hold(tmp_path: Path) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = x * 1000.0
        return x / 1e12

    model = Block(work)
    run = ns.open_run(captured(tmp_path / "run", model, lambda: model(torch.tensor([100.0, 1.0, 3.0])), keep="tensors"))
    margins = {margin.call: margin for margin in headroom(run, FORMATS["fp16"])}
    assert margins["Tensor.mul.0.forward"].over == pytest.approx(1e5 / 65504)
    assert margins["Tensor.mul.0.forward"].overflowing == pytest.approx(1 / 3)
    assert margins["Tensor.div.0.forward"].flushed == pytest.approx(2 / 3)
    assert headroom(run, FORMATS["bf16"]) == []
    assert operators(run)["float32"]["Tensor.mul"] == 1


def test_shares_are_unknown_where_the_data_was_not_kept(tmp_path: Path) -> None:
    model = Block(lambda self, x: x * 1000.0)
    run = ns.open_run(captured(tmp_path / "run", model, lambda: model(torch.tensor([100.0, 1.0]))))
    margin = headroom(run, FORMATS["fp16"])[0]
    assert (margin.over > 1, margin.overflowing, margin.flushed) == (True, None, None)


def test_near_misses_are_found_in_the_runs_own_dtype(tmp_path: Path) -> None:
    model = Block(lambda self, x: x * 2)
    half = torch.tensor([20000.0, 1.0], dtype=torch.float16)
    run = ns.open_run(captured(tmp_path / "run", model, lambda: model(half)))
    assert [margin.call for margin in near_misses(run)] == ["Data.Block.0.input", "Tensor.mul.0.forward"][::-1]


def test_the_chain_of_a_run_of_level_aten_ends_at_the_loss(tmp_path: Path) -> None:
    model = Block(exp_overflow, nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def job() -> None:
        model(torch.ones(3, 4) * 5).backward()
        optimizer.step()

    chain = [link.call for link in check(captured(tmp_path / "run", model, job, level="aten")).chain]
    assert (chain[0], chain[-1]) == ("Aten.exp.0.forward", "Aten.mse_loss.0.forward")
