"""torch.compile under capture: never a crash, the same numbers, boundaries recorded, and what was not seen is said."""

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

import numscope as ns
from numscope.capture.torch import native
from tests.integration.models import MLP


def train(capture=None):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = MLP(torch.nn.GELU())
    compiled = torch.compile(model, backend="aot_eager")
    loss_of = torch.compile(lambda y: F.mse_loss(y, torch.ones_like(y)).sin(), backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []

    def step():
        loss = loss_of(compiled(torch.linspace(-1, 1, 24).view(3, 8)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    if capture is None:
        for _ in range(3):
            step()
    else:
        with capture(model) as cap:
            for _ in range(3):
                step()
                cap.step()
    return losses


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["module", "mix", "aten"])
def test_a_compiled_model_gives_the_same_losses_and_its_boundaries(level, tmp_path):
    path = tmp_path / "run"
    plain = train()
    assert train(lambda model: ns.capture(path, model, level=level, on_error="raise")) == plain
    run = ns.open_run(path)
    names = set(run.calls.column("name").to_pylist())
    assert "Module.OptimizedModule.forward.0" in names
    assert "Module.OptimizedModule.backward.0" in names
    assert "Optimizer.SGD.step.0" in names
    if level != "module":
        assert run.skipped()["compiled region: its inside is not seen"] == 6
    assert train() == plain


@pytest.mark.parametrize("warm", [False, True])
def test_operators_after_a_compiled_region_are_seen_as_before_it(warm, tmp_path):
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager")
    def region(x):
        return torch.sin(x).cos()

    x = torch.randn(3, requires_grad=True)
    if warm:
        region(x)
    with ns.capture(tmp_path / "run", None, level="aten", on_error="raise"):
        torch.exp(x)
        region(x).sum().backward()
        torch.exp(x)
    names = ns.open_run(tmp_path / "run").calls["name"].to_pylist()
    assert [name for name in names if "exp." in name] == ["Aten.exp.0.forward", "Aten.exp.1.forward"]
    assert "Aten.sum.0.forward" in names
    assert "Aten.expand.0.backward" in names
    python = torch._C.DispatchKey.Python
    assert not torch._C._dispatch_tls_is_dispatch_key_included(python)


@pytest.mark.parametrize("twins", [True, False])
@pytest.mark.parametrize("level", ["mix", "aten"])
def test_the_inside_of_a_compiled_backward_is_left_alone(level, twins, tmp_path):
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager")
    def region(x):
        return torch.sin(x).cos()

    x = torch.randn(3, requires_grad=True)
    region(x)
    with (
        nullcontext() if twins else native.without(),
        ns.capture(tmp_path / "run", None, level=level, on_error="raise"),
    ):
        y = region(x)
        (y * 2).sum().backward()
    names = ns.open_run(tmp_path / "run").calls["name"].to_pylist()
    assert not [name for name in names if "sin" in name or "cos" in name or "neg" in name]
    around = (
        ("Aten.mul.0.forward", "Aten.mul.0.backward")
        if level == "aten"
        else ("Tensor.sum.0.forward", "Tensor.sum.0.backward")
    )
    assert set(around) <= set(names)


LATE = """
import sys, torch, numscope as ns
model = torch.nn.Linear(3, 3)
with ns.capture(sys.argv[1], model, level="aten", on_error="raise"):
    x = torch.ones(2, 3)
    plain = model(x).sin()
    compiled = torch.compile(lambda x: model(x).sin(), backend="eager")
    assert torch.equal(compiled(x), plain)
    compiled(x).sum().backward()
run = ns.open_run(sys.argv[1])
print(run.skipped(), [row["name"] for row in run.calls.to_pylist() if "sin" in row["name"]])
"""


def test_a_region_that_is_compiled_after_the_start_is_not_traced_with_our_mode(tmp_path):
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", LATE, str(tmp_path / "run")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("{'compiled region: its inside is not seen'")
    assert "'Aten.sin.0.forward'" in result.stdout
    assert "'Aten.sin.1.forward'" not in result.stdout


BLOCKS = """
import sys, torch, numscope as ns
from torch import nn
level = sys.argv[2]
model = nn.Sequential(*[nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(10)])
with ns.capture(sys.argv[1], model, level=level, on_error="raise") as capture:
    for index in range(10):
        model[index] = torch.compile(model[index], backend="eager")
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
        capture.step()
from torch._dynamo.utils import counters
print(dict(counters["graph_break"]), counters["stats"]["unique_graphs"])
"""


@pytest.mark.parametrize("level", ["module", "aten"])
def test_dynamo_compiles_no_function_of_ours(level, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", BLOCKS, str(tmp_path / "run"), level], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "recompile_limit" not in result.stderr
    breaks, graphs = result.stdout.strip().rsplit(" ", 1)
    assert breaks == "{}"
    assert int(graphs) == 2  # of the block, with and without a gradient of its input


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["mix", "aten"])
def test_what_is_not_to_be_compiled_inside_a_torch_function_leaves_the_modes_as_they_were(level, tmp_path):
    """Torch has taken our mode off while it calls it: switching Dynamo off there must not put the mode on a second time."""
    import torch._dynamo

    with ns.capture(tmp_path / "run", None, level=level, on_error="raise"):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        (nested * 2).sin()
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["module", "mix", "aten"])
def test_a_compiled_optimizer_step_is_recorded(level, tmp_path):
    torch._dynamo.reset()
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    update = torch.compile(optimizer.step, backend="eager")
    with ns.capture(tmp_path / "run", model, level=level, keep="tensors", on_error="raise") as cap:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            before = model.weight.detach().clone()
            update()
            cap.step()
    run = ns.open_run(tmp_path / "run")
    call = "Optimizer.SGD.step.0"
    assert [name for name in run.calls["name"].to_pylist() if name.startswith("Optimizer")] == [call, call]
    assert (run.tensor(f"{call}.parameters.weight", step=1) == before.numpy()).all()
    assert (run.tensor(f"{call}.output.weight", step=1) == model.weight.detach().numpy()).all()
    assert (run.tensor(f"{call}.parameters_grad.weight", step=1) == 1).all()


@pytest.mark.parametrize("level", ["api", "mix", "aten"])
def test_what_export_traces_is_as_without_capture(level, tmp_path):
    """Export has modes of its own above ours, takes notice when one is entered, and expects the order in which it left them."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).eval()
    plain = torch.export.export(model, (torch.ones(2, 4),))
    with ns.capture(tmp_path / "run", model, level=level, on_error="raise"):
        seen = torch.export.export(model, (torch.ones(2, 4),))
        model(torch.ones(2, 4))
    assert [node.target for node in seen.graph.nodes] == [node.target for node in plain.graph.nodes]
    names = ns.open_run(tmp_path / "run").calls["name"].to_pylist()
    gelu = [name for name in names if "gelu" in name and name.startswith(("Functional", "Aten"))]
    assert len(gelu) == 1  # the call, and none that was traced


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["mix", "aten"])
def test_compiled_autograd_traces_no_call_of_ours(level, tmp_path):
    from torch._dynamo import compiled_autograd

    torch._dynamo.reset()
    x = torch.ones(3, requires_grad=True)
    with ns.capture(tmp_path / "run", None, level=level, on_error="raise"):
        loss = (x.sin() * 2).sum()
        with compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()
        torch.exp(x)
    names = ns.open_run(tmp_path / "run").calls["name"].to_pylist()
    assert not [name for name in names if "detach" in name]
    assert [name for name in names if ".exp." in name and name.endswith("forward")]
    torch.testing.assert_close(x.grad, 2 * torch.ones(3).cos())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("twins", [True, False])
@pytest.mark.parametrize("level", ["module", "mix", "aten"])
def test_a_backward_of_compiled_autograd_is_recorded_at_its_ends(level, twins, tmp_path):
    """What goes in, and what is left in parameters, is seen; what is inside is not."""
    from torch._dynamo import compiled_autograd

    torch._dynamo.reset()
    tied = torch.nn.Linear(3, 3)
    model = torch.nn.Sequential(tied, torch.nn.GELU(), tied, torch.nn.Linear(3, 2))
    x, top = torch.ones(2, 3), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with (
        nullcontext() if twins else native.without(),
        ns.capture(tmp_path / "run", model, level=level, keep="tensors", on_error="raise") as cap,
    ):
        for compiles in (True, False):
            model.zero_grad()
            with compiled_autograd._enable(torch.compile(backend="eager")) if compiles else nullcontext():
                model(x).backward(top)
            cap.step()
    run = ns.open_run(tmp_path / "run")
    for step in (0, 1):
        assert (run.tensor("Module.Sequential.backward.0.input.0", step=step) == top.numpy()).all()
        for module, number in (("0", 1), ("3", 0)):
            for name in ("weight", "bias"):
                grad = run.tensor(f"Module.{module}.Linear.backward.{number}.parameters_grad.{name}", step=step)
                assert (grad == model.get_submodule(module).get_parameter(name).grad.numpy()).all()
    rows = run.tensors.select(["step", "name"]).to_pylist()
    seen = {row["name"] for row in rows if row["step"] == 0 and ".backward." in row["name"]}
    assert not [name for name in seen if "GELU" in name or ("Module.0." in name and "_grad." not in name)], seen
    assert run.skipped()["compiled region: its inside is not seen"] >= 1


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("level", ["mix", "aten"])
def test_higher_order_operators_run_under_our_modes(level, verify, tmp_path):
    """A compiled checkpoint calls one in its backward, where the engine has our modes on."""
    from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

    x = torch.ones(4, 4)
    with ns.capture(tmp_path / "run", None, level=level, verify=verify, on_error="raise"):
        state, made = run_and_save_rng_state(torch.ops.aten.bernoulli.p, x, 0.5)
        again = run_with_rng_state(state, torch.ops.aten.bernoulli.p, x, 0.5)
        torch.exp(x)
    assert torch.equal(made, again)
    assert [name for name in ns.open_run(tmp_path / "run").calls["name"].to_pylist() if ".exp." in name]


class OtherWhereCompiled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) * (1.01 if torch.compiler.is_compiling() else 1.0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("level", ["module", "mix"])
def test_a_compiled_module_is_held_against_the_module_that_it_wraps(level, inner, tmp_path):
    """Nothing but its boundary is seen: without it, nothing at all would be compared."""
    for name in ("compiled", "eager"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = OtherWhereCompiled()
        call = torch.compile(model, backend="aot_eager") if name == "compiled" else model
        whole = torch.nn.Sequential(torch.nn.Linear(3, 3), call) if inner else call
        with ns.capture(tmp_path / name, whole if inner else model, level=level, on_error="raise"):
            whole(torch.ones(2, 3))
    comparison = ns.compare(tmp_path / "compiled", tmp_path / "eager")
    assert comparison.verdict == "diverged"
    assert comparison.report.coverage["unmatched_target"] == 0
