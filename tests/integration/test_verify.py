"""Calls held against exact arithmetic while they run: nothing changes, faulty kernels are named, healthy ones are not."""

import json
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import numscope as ns
from numscope.__main__ import main
from numscope.check.own_errors import own_errors
from tests.integration import device_faults, verify_faults, verify_jobs, verify_ranks
from tests.integration.models import CASES, same
from tests.integration.test_neutrality import train


def captured(path, work, **settings):
    with ns.capture(path, verify=True, on_error="raise", **settings) as cap:
        for _ in work:
            cap.step()
    return ns.open_run(path)


@pytest.mark.parametrize("case", CASES)
def test_a_healthy_job_is_the_same_to_the_bit_and_no_call_of_it_computes_wrongly(case, tmp_path):
    expected, expected_gradients = train(CASES[case])
    state = torch.get_rng_state()
    run = tmp_path / "run"
    got, got_gradients = train(CASES[case], lambda model: ns.capture(run, model, verify=True, on_error="raise"))
    assert [name for name, value in expected.items() if not same(value, got[name])] == []
    assert all(same(a, b) for a, b in zip(expected_gradients, got_gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    errors = own_errors(ns.open_run(run))
    assert [origin.reason for origin in errors.wrong] == []
    assert sum(count for word, count in errors.verified.items() if word != "none") > 20


# Each architecture in one precision; `make verified` runs all of them in all.
JOBS = verify_jobs.JOBS if os.environ.get("VERIFY_JOBS") else verify_jobs.JOBS[::5]


@pytest.mark.parametrize(("name", "precision"), JOBS)
def test_no_call_of_a_public_architecture_computes_wrongly(name, precision, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        errors = own_errors(captured(tmp_path / "run", verify_jobs.steps(name, precision)))
    assert [origin.reason for origin in errors.wrong] == []
    assert sum(count for word, count in errors.verified.items() if word != "none") > 300


@pytest.mark.parametrize("level", ["module", "api", "mix", "aten"])
def test_the_calls_are_those_that_are_recorded_without(level, tmp_path):
    names = []
    for verify in (False, True):
        run = tmp_path / str(verify)
        with ns.capture(run, level=level, verify=verify, on_error="raise") as cap:
            for _ in device_faults.train(steps=2):
                cap.step()
        names.append(ns.open_run(run).calls.select(["step", "order", "name", "phase", "parent"]).to_pylist())
    assert names[0] == names[1]


def test_an_unverified_run_has_no_own_errors(tmp_path):
    with ns.capture(tmp_path / "run") as cap:
        for _ in device_faults.train(steps=1):
            cap.step()
    run = ns.open_run(tmp_path / "run")
    assert all(run.calls[name].null_count == run.calls.num_rows for name in ("own_error", "own_ulp", "verified"))
    assert not own_errors(run).known


def test_columns_say_how_a_call_was_verified_and_its_own_error(tmp_path):
    run = captured(tmp_path / "run", device_faults.train(steps=1))
    calls = {row["name"]: row for row in run.calls.to_pylist()}
    linear = calls["Functional.linear.0.forward"]
    assert linear["verified"] == "exact"
    assert 0 < linear["own_error"] < 1e-6
    assert calls["Functional.gelu.0.backward"]["verified"] == "sample"
    assert calls["Optimizer.SGD.step.0"]["verified"] in ("exact", "sample")
    assert calls["Tensor.transpose.0.forward"]["verified"] is None


@pytest.mark.parametrize("name", device_faults.FAULTS)
def test_a_faulty_kernel_in_a_model_is_named_at_its_first_call(name, tmp_path):
    fault = device_faults.FAULTS[name]
    with device_faults.faulty(name):
        run = captured(tmp_path / "run", device_faults.train(steps=1))
    first, *others = own_errors(run).wrong
    assert first.call.split(".")[1] in fault.calls
    assert first.phase == fault.phase
    assert {one.details["operator"] for one in (first, *others)} <= set(fault.kernels)


@pytest.mark.parametrize("name", verify_faults.CASES)
def test_a_faulty_kernel_is_found_and_what_is_no_fault_is_not(name, tmp_path):
    case = verify_faults.CASES[name]
    with verify_faults.replaced(case.kernels):
        run = captured(tmp_path / "run", (verify_faults.run_case(case, step) for step in range(case.steps)))
    assert {origin.details["operator"] for origin in own_errors(run).wrong} == set(case.named)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_with_a_factor_in_a_narrow_dtype_are_healthy(dtype, tmp_path):
    with ns.capture(tmp_path / "run", verify=True, on_error="raise") as cap:
        for size in (16, 240, 5000):  # kernels compute what does not fill a vector in another way
            a, b = torch.randn(size).to(dtype), torch.randn(size).to(dtype)
            for factor in (-0.01, 0.9, 2.0):
                torch.add(a, b, alpha=factor)
                torch.sub(a, b, alpha=factor)
                torch.rsub(a, b, alpha=factor)
                a.clone().add_(b, alpha=factor)
        for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad):
            for foreach in (False, True):
                parameters = [torch.nn.Parameter(torch.randn(size).to(dtype)) for size in (16, 240, 3000)]
                stepper = optimizer(parameters, lr=0.01, foreach=foreach)
                for _ in range(2):
                    for parameter in parameters:
                        parameter.grad = torch.randn_like(parameter)
                    stepper.step()
        cap.step()
    assert [origin.reason for origin in own_errors(ns.open_run(tmp_path / "run")).wrong] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(37, 50), (5, 16)])
def test_kernels_of_narrow_dtypes_that_round_on_their_way_are_healthy(dtype, shape, tmp_path):
    with ns.capture(tmp_path / "run", verify=True, on_error="raise") as cap:
        x, y = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(2))
        made = [torch.rsqrt(x.abs() + 0.1), F.huber_loss(x, y), F.smooth_l1_loss(x, y), F.mse_loss(x, y)]
        sum(one.float().sum() for one in made).backward()
        cap.step()
    assert [origin.reason for origin in own_errors(ns.open_run(tmp_path / "run")).wrong] == []


POOLS = {
    "max, dilated, padded, up to the edge": lambda x: F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True),
    "max of one dimension": lambda x: F.max_pool1d(x[0], 4, 3),
    "max of three": lambda x: F.max_pool3d(x[:, None], (1, 2, 3), padding=(0, 1, 1)),
    "average": lambda x: F.avg_pool2d(x, 2),
    "average without padding, up to the edge": lambda x: F.avg_pool2d(x, (3, 2), 2, 1, True, False),
    "average with padding, up to the edge": lambda x: F.avg_pool2d(x, 3, 2, 1, True, True),
    "average over another number": lambda x: F.avg_pool2d(x, 3, 2, divisor_override=5),
    "average of three dimensions": lambda x: F.avg_pool3d(x[:, None], (1, 2, 3)),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, (5, 7)),
    "adaptive average of three": lambda x: F.adaptive_avg_pool3d(x[:, None], (2, 3, 5)),
    "global average": lambda x: F.adaptive_avg_pool2d(x, 1),
    "in bfloat16": lambda x: F.avg_pool2d(x.bfloat16(), 3, 1, 1) + F.max_pool2d(x.bfloat16(), 3, 1, 1),
    "with NaN": lambda x: F.max_pool2d(torch.where(x > 2, torch.nan, x), 2),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling_is_verified_and_healthy(name, tmp_path):
    with ns.capture(tmp_path / "run", verify=True, on_error="raise") as cap:
        for shape in ((2, 3, 13, 17), (4, 16, 31, 30)):
            x = torch.randn(shape, requires_grad=True)
            POOLS[name](x).square().sum().backward()
        cap.step()
    errors = own_errors(ns.open_run(tmp_path / "run"))
    assert [origin.reason for origin in errors.wrong] == []
    pools = [row.operator for row in errors.accuracy if "pool" in row.operator]
    assert len(pools) >= 2 or name == "global average"
    assert not [reason for reason in errors.reasons if "pool" in reason]


def test_check_names_the_first_call_and_which_elements_are_wrong(tmp_path, capsys):
    with device_faults.faulty("product with a wrong tile"):
        captured(tmp_path / "run", device_faults.train(steps=1))
    assert main(["check", str(tmp_path / "run"), "--json", str(tmp_path / "check.json")]) == 1
    told = capsys.readouterr().out
    assert "WRONG  Functional.linear.0.forward in qkv, step 0" in told
    assert "the tile [8:16, 8:16]" in " ".join(told.split())
    shape = json.loads((tmp_path / "check.json").read_text())
    assert shape["format"] == "numscope.check/1"
    assert shape["found"] is True
    assert shape["origin"]["call"] == "Functional.linear.0.forward"
    assert shape["origin"]["mechanism"] == "device"
    assert shape["origin"]["source"]["code"].startswith("q, k, v")
    assert shape["origin"]["error"]["relative"] > 100 * shape["origin"]["error"]["expected"]


def test_check_of_a_healthy_run_says_how_accurate_its_operators_are(tmp_path, capsys):
    captured(tmp_path / "run", device_faults.train(steps=1))
    assert main(["check", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert "each computes as exactly as its kind is measured to" in told
    assert "native_layer_norm" in told


def test_a_share_thins_by_calls(tmp_path):
    with ns.capture(tmp_path / "run", verify=0.2, on_error="raise") as cap:
        for _ in device_faults.train(steps=3):
            cap.step()
    count = sum(own_errors(ns.open_run(tmp_path / "run")).verified.values())
    assert 30 < count < 100  # of about 290


def test_a_script_is_verified_from_the_command_line(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import torch\nx = torch.randn(4, 5, requires_grad=True)\n(x.exp() @ torch.ones(5, 3)).sum().backward()\n"
    )
    for name, share in (
        ("run", []),
        ("half", ["0.5"]),
    ):  # in processes of their own: a job's order is in its environment
        command = ["run", "--out", str(tmp_path / name), "--verify", *share, "--", str(script)]
        subprocess.run([sys.executable, "-m", "numscope", *command], check=True, capture_output=True)
    assert own_errors(ns.open_run(tmp_path / "run")).verified["exact"] >= 5


def test_a_custom_operator_is_held_against_the_users_reference(tmp_path):
    library = torch.library.Library("verifytest", "FRAGMENT")
    library.define("swiglu(Tensor x, Tensor gate) -> Tensor")
    library.impl("swiglu", lambda x, gate: x * gate * torch.sigmoid(gate), "CPU")
    library.define("coarse(Tensor x) -> Tensor")
    library.impl("coarse", lambda x: (x * x).to(torch.bfloat16).float(), "CPU")
    try:
        ns.exact("verifytest::swiglu", lambda x, gate: x * torch.nn.functional.silu(gate))
        ns.exact(torch.ops.verifytest.coarse, lambda x: x.square())
        with torch.no_grad():
            x = torch.randn(64, 64)
            with ns.capture(tmp_path / "both", verify=True, on_error="raise") as cap:
                torch.ops.verifytest.swiglu(x, x)
                torch.ops.verifytest.coarse(x)
                cap.step()
        errors = own_errors(ns.open_run(tmp_path / "both"))
        assert {origin.details["operator"] for origin in errors.wrong} == {"verifytest::coarse"}
        assert {row.operator for row in errors.accuracy} == {"verifytest::swiglu", "verifytest::coarse"}
    finally:
        library._destroy()


class Square(torch.autograd.Function):
    """x², rounded to bfloat16 on its way where it is coarse; it writes over nothing."""

    coarse = False

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        made = x * x
        return made.bfloat16().float() if Square.coarse else made

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def shifted(x, *, by):
    """Add in place: what it is given must be read before."""
    x.add_(by * (1.001 if Square.coarse else 1.0))
    return {"x": x, "count": 3}


@pytest.mark.parametrize("coarse", [False, True])
def test_functions_of_the_users_own_are_held_against_their_references(coarse, tmp_path, monkeypatch):
    class Own(Square):
        pass

    monkeypatch.setattr(Square, "coarse", coarse)
    assert ns.exact(Own, lambda x: x.square()) is Own
    held = ns.exact(shifted, lambda x, *, by: {"x": x + by, "count": 3})
    x = torch.randn(64, 40, requires_grad=True)
    plain = Square.apply(x)
    assert torch.equal(Own.apply(x), plain)  # where nothing is captured
    with ns.capture(tmp_path / "run", verify=True, on_error="raise") as cap:
        made = Own.apply(x)
        made.sum().backward()
        result = held(torch.ones(50), by=0.25)
        cap.step()
    assert torch.equal(made, plain)
    assert torch.equal(x.grad, 2 * x.detach())
    assert result["count"] == 3
    errors = own_errors(ns.open_run(tmp_path / "run"))
    named = {row.operator: row.wrong for row in errors.accuracy}
    mine = {name.rpartition(".")[2]: wrong for name, wrong in named.items() if name.endswith(("Own", "shifted"))}
    assert mine == {"Own": int(coarse), "shifted": int(coarse)}


def test_a_reference_that_fails_or_makes_something_else_is_a_reason_and_no_verdict(tmp_path):
    def broken(x):
        raise ZeroDivisionError

    held = [ns.exact(lambda x: x + 1, broken), ns.exact(lambda x: x + 1, lambda x: x[:3])]
    with ns.capture(tmp_path / "run", verify=True, on_error="raise") as cap:
        for function in held:
            function(torch.ones(9))
        cap.step()
    errors = own_errors(ns.open_run(tmp_path / "run"))
    assert errors.wrong == ()
    assert any("its reference failed: ZeroDivisionError" in reason for reason in errors.reasons)
    assert any("makes the shape [3], not [9]" in reason for reason in errors.reasons)


def test_a_guard_acts_at_a_function_that_is_not_what_its_reference_makes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    coarse = ns.exact(lambda x: (x * x).bfloat16().float(), lambda x: x * x)
    with pytest.raises(ns.InexactError, match="computes wrongly"), ns.guard(verify=True):
        coarse(torch.randn(50, 50))


def test_what_is_no_function_has_no_reference():
    with pytest.raises(ns.SettingsError, match="is no operator"):
        ns.exact(torch.nn.Linear, lambda x: x)
    with pytest.raises(ns.SettingsError, match="is no operator"):
        ns.exact("swiglu", lambda x: x)


def test_a_guarded_script_that_is_verified_stops_at_the_call(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, torch\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.integration import device_faults\n"
        "with device_faults.faulty('gelu by a coarse table'):\n"
        "    list(device_faults.train(steps=1))\n"
        "print('went on')\n"
    )
    for options, status in (["--verify"], 1), ([], 0):
        command = [sys.executable, "-m", "numscope", "run", "--guard", *options, "--", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert ("went on" in done.stdout) == (not options), done.stderr
        assert ("gelu computes wrongly" in done.stderr) == bool(options)
        assert (done.returncode != 0) == bool(status)


def test_a_step_made_twice_names_the_operator_that_gives_other_bits(tmp_path):
    case = verify_faults.CASES["a race that comes and goes"]
    for kernels, named in ((case.kernels, {"mm"}), ({}, set())):
        run = tmp_path / ("race" if named else "healthy")
        with verify_faults.replaced(kernels), ns.capture(run, verify="replay", on_error="raise") as cap:
            for step in range(case.steps):
                verify_faults.run_case(case, step)
                cap.step()
        errors = own_errors(ns.open_run(run))
        assert {origin.details["operator"] for origin in errors.wrong} == named
        assert errors.verified["exact"] >= case.steps
    assert "made again on the same inputs" in own_errors(ns.open_run(tmp_path / "race")).wrong[0].reason


def test_a_collective_that_loses_a_rank_is_named_with_the_rank(tmp_path):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    script = Path(verify_ranks.__file__)
    environment = {**os.environ, "PYTHONPATH": str(script.parents[2])}
    subprocess.run([sys.executable, str(script), port, str(tmp_path)], check=True, env=environment, timeout=200)
    told = {name: own_errors(ns.open_run(tmp_path / name)).wrong for name in verify_ranks.FAULTS}
    assert told["healthy"] == ()
    assert {origin.call for origin in told["dropped"]} == {
        "Distributed.all_reduce.0.forward",
        "Distributed.all_reduce.1.forward",
    }
    assert told["dropped"][0].reason.endswith("the part of rank 1 is missing")
    assert {(origin.call, origin.rank) for origin in told["another"]} == {("Distributed.broadcast.0.forward", 1)}
    assert {origin.call.split(".")[1] for origin in told["scattered"]} == {"reduce_scatter", "reduce_scatter_tensor"}
    assert all("the part of rank 1 is missing" in origin.reason for origin in told["scattered"])
    assert {origin.call.split(".")[1] for origin in told["exchanged"]} == {
        "all_to_all",
        "all_to_all_single",
        "all_gather_into_tensor",
    }


@pytest.mark.parametrize("action", ["raise", "warn", "stop"])
def test_a_guard_acts_at_a_call_that_computes_wrongly(action, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with device_faults.faulty("gelu by a coarse table"), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if action == "raise":
            with pytest.raises(ns.InexactError, match="gelu computes wrongly") as raised, ns.guard(verify=True):
                list(device_faults.train(steps=1))
            assert raised.value.origin["source"]["code"].endswith("self.down(F.gelu(self.up(h)))")
        else:
            with ns.guard(verify=True, action=action):
                list(device_faults.train(steps=1))
            assert sum("gelu computes wrongly" in str(one.message) for one in told) == 1


def test_a_guard_that_verifies_lets_a_healthy_job_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ns.guard(verify=True):
        list(device_faults.train(steps=2))
    assert list(tmp_path.iterdir()) == []
