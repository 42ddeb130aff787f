"""How much is recorded: scope, exclusions, phases, slots, caps, samples, steps, settings file, environment, control file."""

import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import numscope as ns
from tests.integration.models import CASES, MLP, Transformer


def record(path, model=None, work=None, steps=1, **settings):
    torch.manual_seed(0)
    model = model if model is not None else Transformer()

    def step():
        model(torch.arange(6).view(1, 6)).sum().backward()

    with ns.capture(path, model, on_error="raise", **settings) as cap:
        for _ in range(steps):
            (work or step)()
            cap.step()
    return ns.open_run(path)


def names(run):
    return run.calls.column("name").to_pylist()


def test_a_scope_is_a_part_of_a_name_a_glob_a_regex_a_path_a_class_or_a_function(tmp_path):
    everything = names(record(tmp_path / "all"))
    cases = {
        "linear": [n for n in everything if "linear" in n],
        "Functional.linear.?.forward": [n for n in everything if re.fullmatch(r"Functional\.linear\.\d\.forward", n)],
        "/gelu|relu/": [n for n in everything if "gelu" in n],
    }
    for index, (scope, expected) in enumerate(cases.items()):
        found = names(record(tmp_path / str(index), scope=scope))
        assert sorted(n for n in found if n.endswith("forward")) == sorted(n for n in expected if n.endswith("forward"))
    inside = record(tmp_path / "path", scope="blocks.1.attn").calls.to_pylist()
    assert inside
    assert all(row["module"].startswith("blocks.1.attn") for row in inside)
    norm = record(tmp_path / "class", scope=nn.LayerNorm).calls.to_pylist()
    assert {row["module_class"] for row in norm} == {"LayerNorm"}
    chosen = record(tmp_path / "test", scope=lambda call: call.module == "blocks.0" and call.kind == "api")
    assert {row["module"] for row in chosen.calls.to_pylist()} == {"blocks.0"}


def test_a_range_has_both_its_ends_in_every_step(tmp_path):
    everything = [n for n in names(record(tmp_path / "all")) if n.endswith("forward")]
    first, last = "Functional.layer_norm.1.forward", "Functional.gelu.1.forward"
    expected = everything[everything.index(first) : everything.index(last) + 1]
    for index, scope in enumerate([f"{first}..{last}", slice(first, last)]):
        run = record(tmp_path / str(index), scope=scope, steps=2, backward=False, level="mix")
        for step in (0, 1):
            found = [row["name"] for row in run.calls.to_pylist() if row["step"] == step and row["kind"] == "api"]
            assert found == [n for n in expected if not n.startswith("Module")]


@pytest.mark.parametrize(
    ("first", "last"),
    [("Functional.linear.1", "Functional.gelu.0"), ("Module.blocks.0.norm.LayerNorm", "Functional.gelu.0")],
)
def test_the_ends_of_a_range_may_be_named_without_their_phase(tmp_path, first, last):
    everything = names(record(tmp_path / "all", backward=False))
    found = names(record(tmp_path / "run", backward=False, scope=f"{first}..{last}"))
    begin = next(i for i, n in enumerate(everything) if n.startswith(f"{first}.forward"))
    assert found == everything[begin : everything.index(f"{last}.forward") + 1]


def test_exclusions_overrule(tmp_path):
    found = names(record(tmp_path / "run", exclude=["view", "/transpose|unflatten/"]))
    assert not [n for n in found if "view" in n or "transpose" in n]
    assert [n for n in found if "linear" in n]


def test_a_scope_that_matched_nothing_warns_with_the_nearest_names(tmp_path):
    with (
        pytest.warns(UserWarning, match=r"matched none of .* calls; nearest are Functional\.linear"),
        ns.capture(tmp_path / "run", MLP(), scope="Functional.linaer.0.forward") as cap,
    ):
        F.linear(torch.ones(1, 2), torch.ones(2, 2))
        cap.step()


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_one_phase_alone(phase, tmp_path):
    both = record(tmp_path / "both").calls.to_pylist()
    run = record(tmp_path / "run", phase=phase)
    assert {row["phase"] for row in run.calls.to_pylist()} - {"input"} == {phase}
    assert (
        sorted(names(run)) == sorted(row["name"] for row in both if row["phase"] in (phase, "input"))
        or phase == "backward"
    )
    if phase == "backward":
        assert sorted(names(run)) == sorted(row["name"] for row in both if row["phase"] == "backward")


@pytest.mark.parametrize(
    ("slots", "groups"),
    [("input", {"input", "kwargs", "parameters", "buffers"}), ("output", {"output", "parameters_grad"})],
)
def test_one_side_alone(slots, groups, tmp_path):
    run = record(tmp_path / "run", slots=slots)
    assert {slot.partition(".")[0] for slot in run.tensors.column("slot").to_pylist()} <= groups


def test_caps_hold_per_step_or_in_all_and_are_counted(tmp_path):
    run = record(tmp_path / "step", max_tensors=7, max_gradients=3, steps=2)
    for step in (0, 1):
        phases = {row["order"]: row["phase"] for row in run.calls.to_pylist() if row["step"] == step}
        rows = [row for row in run.tensors.to_pylist() if row["step"] == step]
        assert sum(phases[row["call"]] != "backward" for row in rows) == 7
        assert sum(phases[row["call"]] == "backward" for row in rows) == 3
    assert "over the cap of 7 tensors" in run.skipped()
    assert record(tmp_path / "all", max_tensors=7, caps="all", backward=False, steps=2).tensors.num_rows == 7


def test_a_sample_is_head_every_kth_and_tail_with_statistics_of_the_whole(tmp_path):
    x = torch.arange(1600.0).view(40, 40).t()
    with ns.capture(tmp_path / "run", None, keep="sample", sample=2, tensors=["*exp*"], on_error="raise") as cap:
        x.sin()
        x[:2].exp()
        cap.step()
    run = ns.open_run(tmp_path / "run")
    flat = x.reshape(-1).numpy()
    expected = np.concatenate([flat[:256], flat[256:-256:2], flat[-256:]])
    np.testing.assert_array_equal(run.sample("Tensor.sin.0.forward.input.0"), expected)
    assert len(expected) == 1056
    row = next(r for r in run.tensors.to_pylist() if r["name"] == "Tensor.sin.0.forward.input.0")
    assert row["max"] == 1599
    assert not row["kept"]
    with pytest.raises(ns.NotKeptError):
        run.tensor("Tensor.sin.0.forward.input.0")
    np.testing.assert_array_equal(run.tensor("Tensor.exp.0.forward.input.0"), x[:2].numpy())
    for wrong in (0, 101, (1, 2)):
        with pytest.raises(ns.SettingsError, match="sample"):
            ns.capture(tmp_path / "other", None, sample=wrong)


def test_a_few_full_tensors_while_everything_has_fingerprints(tmp_path):
    run = record(tmp_path / "run", tensors=["*gelu.1.forward.*", "/layer_norm.0.*output/"])
    kept = {row["name"] for row in run.tensors.to_pylist() if row["kept"]}
    assert {
        "Functional.gelu.1.forward.input.0",
        "Functional.gelu.1.forward.output.0",
        "Functional.layer_norm.0.forward.output.0",
    } <= kept
    assert run.tensor("Functional.gelu.1.forward.output.0").shape == (1, 6, 32)
    assert None not in run.tensors.column("hash").to_pylist()


def test_a_settings_file_has_the_same_keys_and_arguments_go_first(tmp_path):
    file = tmp_path / "numscope.toml"
    file.write_text('[capture]\nlevel = "module"\nscope = ["blocks.0"]\nsteps = "0-4:2"\nbackward = false\n')
    run = record(tmp_path / "run", config=file, steps=1)
    assert {row["kind"] for row in run.calls.to_pylist()} == {"module"}
    assert run.manifest["settings"]["scope"] == ["blocks.0"]
    assert ns.open_run(tmp_path / "run").manifest["settings"]["level"] == "module"
    run = record(tmp_path / "other", config=file, level="mix")
    assert "api" in {row["kind"] for row in run.calls.to_pylist()}
    file.write_text('levle = "module"\n')
    with pytest.raises(ns.SettingsError, match=r"levle.*did you mean 'level'"):
        ns.capture(tmp_path / "third", None, config=file)
    file.write_text("level = \n")
    with pytest.raises(ns.SettingsError, match="not valid TOML"):
        ns.capture(tmp_path / "third", None, config=file)
    with pytest.raises(ns.SettingsError, match="cannot be read"):
        ns.capture(tmp_path / "third", None, config=tmp_path / "none.toml")


def test_environment_variables_are_settings_between_file_and_arguments(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMSCOPE_LEVEL", "module")
    monkeypatch.setenv("NUMSCOPE_BACKWARD", "0")
    rows = record(tmp_path / "run").calls.to_pylist()
    assert {row["kind"] for row in rows} == {"module", "data"}
    assert {row["phase"] for row in rows} == {"forward", "input"}
    monkeypatch.setenv("NUMSCOPE_KEEEP", "tensors")
    with pytest.raises(ns.SettingsError, match=r"NUMSCOPE_KEEEP.*did you mean 'NUMSCOPE_KEEP'"):
        ns.capture(tmp_path / "other", None)


def test_touching_the_control_file_records_the_next_step(tmp_path):
    control = tmp_path / "look"
    model, _, step = CASES["mlp"]()
    with ns.capture(tmp_path / "run", model, control=str(control), on_error="raise") as cap:
        for index in range(9):
            if index == 2:
                control.touch()
            if index == 5:
                control.write_text("2")
            step(index)
            cap.step()
    assert ns.open_run(tmp_path / "run").steps == [3, 6, 7]


SCRIPT = """
import torch, torch.nn as nn
torch.manual_seed(0)
net, critic = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
first, second = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.Adam(critic.parameters())
for _ in range(4):
    x = torch.randn(3, 4)
    critic(net(x)).sum().backward()
    first.step(); second.step()
    first.zero_grad(); second.zero_grad()
net(torch.ones(1, 4))
"""


def run_script(tmp_path, *flags):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    out = tmp_path / "run"
    command = [sys.executable, "-m", "numscope", "run", *flags, "--out", str(out), "--overwrite", "--", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return ns.open_run(out)


def test_an_unchanged_script_has_a_step_for_each_round_of_its_optimizers(tmp_path):
    run = run_script(tmp_path)
    assert run.steps == [0, 1, 2, 3, 4]
    for step in range(4):
        found = [row["name"] for row in run.calls.to_pylist() if row["step"] == step]
        assert found[-2:] == ["Optimizer.SGD.step.0", "Optimizer.Adam.step.0"]
        assert sum("Torch.randn" in name for name in found) == 1
        assert "Module.Sequential.forward.0" in found


def test_chosen_steps_of_an_unchanged_script(tmp_path):
    assert run_script(tmp_path, "--steps", "1-3:2", "--level", "module").steps == [1, 3]
    file = tmp_path / "c.toml"
    file.write_text('steps = [2]\nkeep = "structure"\n')
    run = run_script(tmp_path, "-c", str(file))
    assert run.steps == [2]
    assert set(run.tensors.column("hash").to_pylist()) == {None}
