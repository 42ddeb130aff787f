"""Capture in the places where watching usually goes wrong."""

import _thread
import gc
import threading
import time
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.modules import module as module_globals
from torch.utils._python_dispatch import _get_current_dispatch_mode

import numscope as ns
from tests.integration.models import CASES, MLP, Transformer


def names(run):
    return run.calls.column("name").to_pylist()


def footprint(model):
    """Return all that capture could leave behind on torch, on a model and on its optimizers."""
    import torch.optim.optimizer as optimizer_globals
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    hooks = [
        name
        for name in vars(module_globals)
        if name.startswith("_global_") and isinstance(vars(module_globals)[name], dict)
    ]
    return {
        "call": nn.Module.__call__,
        "apply": torch.autograd.Function.__dict__["apply"],
        "modes": (list(_get_current_function_mode_stack()), list(_get_current_dispatch_mode_stack())),
        "global hooks": {name: dict(vars(module_globals)[name]) for name in hooks},
        "optimizer hooks": (
            dict(optimizer_globals._global_optimizer_pre_hooks),
            dict(optimizer_globals._global_optimizer_post_hooks),
        ),
        "modules": [
            {
                key: (dict(value) if isinstance(value, dict) else value)
                for key, value in vars(m).items()
                if "hook" in key
            }
            for m in model.modules()
        ],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "parameters": [
            (p._backward_hooks, p._post_accumulate_grad_hooks and dict(p._post_accumulate_grad_hooks))
            for p in model.parameters()
        ],
        "tensor": dict(vars(torch.Tensor)),
        "torch": {name: value for name, value in vars(torch).items() if name.startswith("_")},
        "operators": (torch._ops.OpOverload.__call__, torch._ops.OpOverloadPacket.__call__),
        "versions": torch._C._autograd._unsafe_set_version_counter,
        "graphs": dict(vars(torch.cuda.CUDAGraph)),
        "switch": {name: value for name, value in vars(torch._dynamo.eval_frame).items() if "eval_frame" in name},
        "backward": (torch.autograd._engine_run_backward, torch.autograd.graph._engine_run_backward),
        "resize": torch.UntypedStorage.resize_,
        "collectives": dict(torch.distributed.ProcessGroup.__dict__),
        "work": dict(torch.distributed.Work.__dict__),
    }


@pytest.mark.parametrize("level", ["module", "api", "mix", "aten"])
def test_everything_is_undone_at_stop(level, tmp_path):
    model, _, step = CASES["transformer with dropout"]()
    step(0)
    before = footprint(model)
    with ns.capture(tmp_path / "run", model, level=level, on_error="raise") as cap:
        step(1)
        cap.step()
        assert footprint(model) != before
    after = footprint(model)
    assert {key for key in before if before[key] != after[key]} <= {"parameters"}
    assert all(not hooks for _, hooks in after["parameters"])


def test_steps_that_are_not_wanted_are_not_watched(tmp_path):
    model, _, step = CASES["mlp"]()
    plain = nn.Module.__call__
    with ns.capture(tmp_path / "run", model, steps="1-3:2", on_error="raise") as cap:
        for index in range(5):
            assert (nn.Module.__call__ is plain) == (index not in (1, 3))
            step(index)
            cap.step()
    assert ns.open_run(tmp_path / "run").steps == [1, 3]


def test_an_exception_that_the_user_catches_does_not_blind_the_rest(tmp_path):
    with ns.capture(tmp_path / "run", None, keep="tensors", on_error="raise") as cap:
        with pytest.raises(RuntimeError):
            torch.ones(2, 3) @ torch.ones(2, 3)
        with pytest.raises(ValueError, match="batch_size"):
            F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 1, 2]))
        torch.ones(2).exp()
        cap.step()
    rows = ns.open_run(tmp_path / "run").calls.to_pylist()
    failed = [row for row in rows if row["error"]]
    assert [row["name"].split(".")[1] for row in failed] == ["matmul", "cross_entropy"]
    exp = next(row for row in rows if row["name"] == "Tensor.exp.0.forward")
    assert exp["parent"] is None


def test_a_second_capture_while_one_is_active_is_a_clear_error(tmp_path):
    with ns.capture(tmp_path / "a", None):
        second = ns.capture(tmp_path / "b", None)
        with pytest.raises(ns.CaptureError, match="active already"):
            second.start()
    second.start()
    second.close()


def test_an_existing_run_is_not_overwritten_unless_asked(tmp_path):
    for overwrite in (False, True):
        with ns.capture(tmp_path / "run", None, overwrite=overwrite) as cap:
            torch.ones(2).sin()
            cap.step()
    with pytest.raises(ns.RunError, match="already holds a run"):
        ns.capture(tmp_path / "run", None)


def test_four_threads_at_once_have_calls_of_their_own(tmp_path):
    models = [MLP() for _ in range(4)]
    inputs = [torch.full((3, 8), float(index)) for index in range(4)]
    expected = [model(x) for model, x in zip(models, inputs)]
    results = [None] * 4
    barrier = threading.Barrier(4)

    def work(index):
        barrier.wait()
        for _ in range(5):
            results[index] = models[index](inputs[index])
            results[index].sum().backward()

    with ns.capture(
        tmp_path / "run", {str(i): m for i, m in enumerate(models)}, keep="tensors", on_error="raise"
    ) as cap:
        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cap.step()
    run = ns.open_run(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(expected, results))
    rows = run.calls.to_pylist()
    assert len({row["name"] for row in rows}) == len(rows)
    by_order = {row["order"]: row for row in rows}
    for row in rows:
        if row["parent"] is not None and row["phase"] == "forward":
            assert by_order[row["parent"]]["thread"] == row["thread"]
    for index in range(4):
        for call in range(5):
            recorded = run.tensor(f"Module.{index}.first.Linear.forward.{call}.input.0")
            assert (recorded == index).all()
            got = run.tensor(f"Module.{index}.MLP.forward.{call}.output.0")
            assert (got == expected[index].detach().numpy()).all()
    assert run.skipped() == {}


@pytest.mark.parametrize("keep", ["structure", "stats"])
def test_activations_live_no_longer_than_without_capture(keep, tmp_path):
    model = Transformer()
    seen = []

    def watch(module, args, output):
        seen.append(weakref.ref(output.untyped_storage()))

    handle = model.blocks[0].register_forward_hook(watch)
    gc.disable()
    try:
        with ns.capture(tmp_path / "run", model, keep=keep, on_error="raise"):
            with torch.no_grad():
                model(torch.zeros(1, 3, dtype=torch.long))
            assert seen[-1]() is None
            loss = model(torch.zeros(1, 3, dtype=torch.long)).sum()
            assert loss is not None
            loss.backward()
            del loss
            assert seen[-1]() is None
    finally:
        gc.enable()
        handle.remove()


def test_a_quantized_tensor_is_counted_and_no_fault(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that these go
        with ns.capture(tmp_path / "run", None, on_error="raise"):
            torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8)
    assert ns.open_run(tmp_path / "run").skipped() == {"quantized tensor": 1}


def test_calls_under_func_transforms_are_recorded_or_counted(tmp_path):
    weight = torch.randn(3, 3)
    batch = torch.randn(4, 3)
    with ns.capture(tmp_path / "run", None, on_error="raise") as cap:
        out = torch.func.vmap(lambda x: (weight @ x).tanh())(batch)
        gradient = torch.func.grad(lambda x: x.sin().sum())(batch)
        jacobian = torch.func.jacrev(lambda x: x.sin())(batch[0])
        cap.step()
    assert torch.equal(gradient, batch.cos())
    assert torch.allclose(jacobian, torch.diag(batch[0].cos()))
    assert torch.allclose(out, (batch @ weight.T).tanh())
    run = ns.open_run(tmp_path / "run")
    assert any("tanh" in name for name in names(run))
    assert any("torch.func" in reason for reason in run.skipped())


def test_what_has_no_plain_data_is_counted_with_its_reason(tmp_path):
    with ns.capture(tmp_path / "run", None, on_error="raise") as cap:
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        (nested * 2).sin()
        torch.ones(3, device="meta").sin()
        torch.eye(3).to_sparse() * 2
        cap.step()
    reasons = ns.open_run(tmp_path / "run").skipped()
    assert any("nested" in reason.lower() for reason in reasons), reasons
    assert "meta tensor" in reasons
    assert any("sparse" in reason for reason in reasons)


def test_inference_mode_and_no_grad_are_recorded(tmp_path):
    model = MLP()
    with ns.capture(tmp_path / "run", model, keep="tensors", on_error="raise") as cap:
        with torch.inference_mode():
            x = torch.ones(2, 8)
            x.mul_(3)
            out = model(x)
        with torch.no_grad():
            again = model(torch.full((2, 8), 3.0))
        cap.step()
    run = ns.open_run(tmp_path / "run")
    assert (run.tensor("Module.MLP.forward.0.input.0") == 3).all()
    assert (run.tensor("Module.MLP.forward.0.output.0") == out.numpy()).all()
    assert (run.tensor("Module.MLP.forward.1.output.0") == again.numpy()).all()


def test_data_loader_workers_are_left_alone(tmp_path):
    data = torch.utils.data.TensorDataset(torch.randn(8, 8), torch.randint(0, 4, (8,)))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
    model = MLP()
    with ns.capture(tmp_path / "run", model, on_error="raise") as cap:
        batches = iter(loader)
        for x, y in batches:
            F.cross_entropy(model(x), y).backward()
            cap.step()
        del batches
    run = ns.open_run(tmp_path / "run")
    assert run.steps == [0, 1]
    assert run.ranks == [0]


def test_a_tensor_written_through_data_is_measured_again(tmp_path):
    x = torch.zeros(4)
    with ns.capture(tmp_path / "run", None, keep="tensors", on_error="raise") as cap:
        x.sin()
        x.data.fill_(1.0)
        x.sin()
        x.numpy()[:] = 2.0
        x.sin()
        cap.step()
    run = ns.open_run(tmp_path / "run")
    assert [float(run.tensor(f"Tensor.sin.{i}.forward.input.0")[0]) for i in range(3)] == [0.0, 1.0, 2.0]


def test_start_and_stop_around_parts_of_steps_make_one_run(tmp_path):
    cap = ns.capture(tmp_path / "run", None, on_error="raise")
    for step in range(3):
        cap.start()
        torch.ones(2).sin()
        cap.stop()
        torch.ones(2).cos()
        if step == 1:
            cap.start()
            torch.ones(2).tan()
            cap.stop()
        cap.step()
    cap.close()
    run = ns.open_run(tmp_path / "run")
    assert run.steps == [0, 1, 2]
    seen = [(row["step"], row["name"]) for row in run.calls.to_pylist() if "ones" not in row["name"]]
    assert seen == [
        (0, "Tensor.sin.0.forward"),
        (1, "Tensor.sin.0.forward"),
        (1, "Tensor.tan.0.forward"),
        (2, "Tensor.sin.0.forward"),
    ]


def test_a_fault_of_ours_is_counted_and_training_goes_on(tmp_path, monkeypatch):
    from numscope.capture.torch.identity.tensors import Tensors

    model, _, step = CASES["mlp"]()
    monkeypatch.setattr(Tensors, "number", lambda self, tensor: 1 // 0)
    with pytest.warns(UserWarning, match="training goes on"), ns.capture(tmp_path / "run", model) as cap:
        assert torch.isfinite(step(0))
        cap.step()
    assert any("ZeroDivisionError" in reason for reason in ns.open_run(tmp_path / "run").skipped())


def test_a_fused_optimizer_s_parameters_are_measured_after_its_step(tmp_path):
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    with ns.capture(tmp_path / "run", model, keep="tensors") as capture:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        capture.step()
    kept = ns.open_run(tmp_path / "run").tensor("Optimizer.AdamW.step.0.output.weight")
    assert (kept == model.weight.detach().numpy()).all()


def test_stopping_inside_a_modules_forward_is_ordinary(tmp_path):
    model = MLP()
    cap = ns.capture(tmp_path / "run", model, on_error="raise")
    handle = model.act.register_forward_hook(lambda *_: cap.stop())
    cap.start()
    out = model(torch.ones(2, 8))
    handle.remove()
    cap.start()
    assert torch.equal(model(torch.ones(2, 8)), out)
    cap.close()
    found = names(ns.open_run(tmp_path / "run"))
    assert "Module.first.Linear.forward.0" in found
    assert "Module.MLP.forward.1" in found


def test_parameters_gradients_are_seen_in_every_recorded_step_and_hooks_are_there_only_then(tmp_path):
    model = torch.nn.Linear(3, 3)
    cap = ns.capture(tmp_path / "run", model, steps=[0, 2], on_error="raise")
    hooked = []
    assert not model.weight._post_accumulate_grad_hooks
    with cap:
        for _ in range(4):
            hooked.append(bool(model.weight._post_accumulate_grad_hooks))
            model(torch.ones(2, 3)).sum().backward()
            cap.step()
    assert hooked == [True, False, True, False]
    rows = ns.open_run(tmp_path / "run").tensors.to_pylist()
    seen = {(row["step"], row["slot"]) for row in rows if row["slot"].startswith("parameters_grad")}
    assert seen == {(step, f"parameters_grad.{name}") for step in (0, 2) for name in ("weight", "bias")}


def test_an_operator_without_a_python_frame_above_it_is_recorded(tmp_path):
    """As in the thread in which autograd works for a GPU."""
    x = torch.arange(4.0)
    with ns.capture(tmp_path / "run", level="aten", on_error="raise") as cap:
        mode = _get_current_dispatch_mode()
        _thread.start_new_thread(mode.__torch_dispatch__, (torch.ops.aten.mul.Tensor, (), (x, x)))
        alive = weakref.ref(x)
        del x  # but for the thread
        for _ in range(10_000):  # not for ever: a fault keeps it
            if alive() is None:
                break
            time.sleep(0.001)
        cap.step()
    run = ns.open_run(tmp_path / "run")
    assert run.skipped() == {}
    assert names(run) == ["Aten.mul.0.forward"]


def test_type_is_a_call_where_it_casts_and_none_where_it_asks(tmp_path):
    x = torch.randn(3)
    with ns.capture(tmp_path / "run", None, on_error="raise"):
        assert x.type() == "torch.FloatTensor"
        x.type(torch.float64)
    rows = ns.open_run(tmp_path / "run").calls.to_pylist()
    assert [row["name"] for row in rows] == ["Tensor.type.0.forward"]


def test_a_class_that_extends_an_optimizer_s_step_is_one_step_with_all_that_it_writes(tmp_path):
    class Longer(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            with torch.no_grad():
                self.param_groups[0]["params"][0].mul_(2)

    model = nn.Linear(2, 2)
    optimizer = Longer(model.parameters(), lr=0.1)
    with ns.capture(tmp_path / "run", model, keep="tensors", on_error="raise"):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    run = ns.open_run(tmp_path / "run")
    assert [row["name"] for row in run.calls.to_pylist() if row["kind"] == "optimizer"] == ["Optimizer.Longer.step.0"]
    assert (run.tensor("Optimizer.Longer.step.0.output.weight") == model.weight.detach().numpy()).all()


def test_numbers_of_numpy_with_the_same_bits_are_told_apart(tmp_path):
    x = torch.ones(3)
    with ns.capture(tmp_path / "run", None, level="api", keep="structure", on_error="raise"):
        for value in (np.float32(0), np.int32(0), 0, 0.0, False):
            torch.mul(x, value)
    arguments = ns.open_run(tmp_path / "run").calls.column("arguments").to_pylist()
    assert [text.rpartition(" ")[2] for text in arguments] == ["0.0}}", "0}}", "0}}", "0.0}}", "false}}"]
