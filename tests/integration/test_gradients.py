"""Gradients that capture records are autograd's own, in argument order, for calls and for modules."""

import gc
import weakref

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import numscope as ns


def record(tmp_path, model, work, **settings):
    path = tmp_path / "run"
    with ns.capture(path, model, keep="tensors", on_error="raise", **settings) as cap:
        work()
        cap.step()
    return ns.open_run(path)


def assert_same(recorded, tensor):
    np.testing.assert_array_equal(recorded, tensor.detach().numpy())


def test_a_linear_of_three_dimensions_has_input_weight_and_bias_gradients(tmp_path):
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    x = torch.randn(2, 5, 4, requires_grad=True)
    outer = torch.randn(2, 5, 3)
    expected = torch.autograd.grad((layer(x) * outer).sum(), [x, layer.weight, layer.bias])

    def work():
        (layer(x) * outer).sum().backward()

    run = record(tmp_path, layer, work)
    name = "Functional.linear.0.backward"
    assert_same(run.tensor(f"{name}.input.0"), outer)
    for index, gradient in enumerate(expected):
        assert_same(run.tensor(f"{name}.output.{index}"), gradient)
    assert_same(run.tensor("Module.Linear.backward.0.output.0"), expected[0])
    assert_same(run.tensor("Module.Linear.backward.0.parameters_grad.weight"), expected[1])
    assert_same(run.tensor("Module.Linear.backward.0.parameters_grad.bias"), expected[2])


def test_a_module_input_used_several_times_inside_and_outside_has_the_modules_own_share(tmp_path):
    class Twice(nn.Module):
        def forward(self, x):
            return x.sin() * x + x.exp()

    module = Twice()
    x = torch.randn(6, requires_grad=True)
    share = torch.autograd.grad(module(x).sum(), x)[0]

    def work():
        (module(x) + 10 * x).sum().backward()

    run = record(tmp_path, module, work)
    np.testing.assert_allclose(run.tensor("Module.Twice.backward.0.output.0"), share.numpy(), rtol=1e-6)


def test_the_same_tensor_in_two_arguments_has_a_gradient_for_each(tmp_path):
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    y = torch.tensor([5.0, 7.0])

    def work():
        (torch.mul(x, x) * y).sum().backward()

    run = record(tmp_path, None, work)
    assert_same(run.tensor("Torch.mul.0.backward.output.0"), x * y)
    assert_same(run.tensor("Torch.mul.0.backward.output.1"), x * y)


def test_several_outputs_each_have_their_incoming_gradient(tmp_path):
    x = torch.randn(6, 2, requires_grad=True)

    def work():
        a, _, c = x.split(2)
        (a.sum() * 2 + (c * 3).sum()).backward()

    run = record(tmp_path, None, work)
    assert_same(run.tensor("Tensor.split.0.backward.input.0"), torch.full((2, 2), 2.0))
    assert_same(run.tensor("Tensor.split.0.backward.input.2"), torch.full((2, 2), 3.0))
    assert_same(
        run.tensor("Tensor.split.0.backward.output.0"),
        torch.tensor([2.0, 0, 3]).repeat_interleave(2)[:, None].expand(6, 2),
    )


def test_inputs_are_recorded_as_they_were_before_an_in_place_call(tmp_path):
    x = torch.tensor([1.0, -2.0, 3.0])
    before = x.clone()

    def work():
        F.relu_(x)
        x[0:1] = 9.0
        x.view(3).mul_(2)

    run = record(tmp_path, None, work)
    assert_same(run.tensor("Functional.relu_.0.forward.input.0"), before)
    assert_same(run.tensor("Functional.relu_.0.forward.output.0"), torch.tensor([1.0, 0.0, 3.0]))
    assert_same(run.tensor("Tensor.__setitem__.0.forward.output.0"), torch.tensor([9.0, 0.0, 3.0]))
    assert_same(run.tensor("Tensor.mul_.0.forward.input.0"), torch.tensor([9.0, 0.0, 3.0]))
    assert_same(run.tensor("Tensor.mul_.0.forward.output.0"), torch.tensor([18.0, 0.0, 6.0]))


def test_a_gradient_of_a_tensor_changed_in_place_later_is_of_the_tensor_before(tmp_path):
    x = torch.randn(4, requires_grad=True)

    def work():
        y = x * 2
        y.mul_(5)
        y.sum().backward()

    run = record(tmp_path, None, work)
    assert_same(run.tensor("Tensor.mul.0.backward.input.0"), torch.full((4,), 5.0))
    assert_same(run.tensor("Tensor.mul_.0.backward.input.0"), torch.ones(4))
    assert_same(run.tensor("Tensor.mul_.0.backward.output.0"), torch.full((4,), 5.0))


def test_an_autograd_function_is_a_call_with_its_own_backward(tmp_path):
    from tests.integration.models import Scaled

    x = torch.randn(3, requires_grad=True)

    def work():
        y, total = Scaled.apply(x, 3.0)
        (y.sum() * 2 + total).backward()

    run = record(tmp_path, None, work)
    assert_same(run.tensor("Function.Scaled.0.forward.output.0"), x * 3)
    assert_same(run.tensor("Function.Scaled.0.backward.input.0"), torch.full((3,), 2.0))
    assert_same(run.tensor("Function.Scaled.0.backward.output.0"), torch.full((3,), 7.0))
    calls = {row["name"]: row for row in run.calls.to_pylist()}
    forward = calls["Function.Scaled.0.forward"]
    inner = [row for row in calls.values() if row["parent"] == forward["order"] and row["phase"] == "forward"]
    assert {row["name"].split(".")[1] for row in inner} == {"mul", "sum"}
    backward = calls["Function.Scaled.0.backward"]
    assert any(row["phase"] == "backward" and row["parent"] == backward["order"] for row in calls.values())


def test_saved_values_have_their_gradient(tmp_path):
    x = torch.randn(3, requires_grad=True)
    path = tmp_path / "run"
    with ns.capture(path, None, keep="tensors", on_error="raise") as cap:
        y = x * 4
        cap.save("mine", {"y": y}, grad=True)
        (y * 2).sum().backward()
        cap.step()
    run = ns.open_run(path)
    assert_same(run.tensor("Save.mine.0.forward.output.y"), y)
    assert_same(run.tensor("Save.mine.0.backward.input.y"), torch.full((3,), 2.0))


def test_nothing_after_forward_end_is_recorded_nor_its_backward(tmp_path):
    x = torch.randn(3, requires_grad=True)
    path = tmp_path / "run"
    with ns.capture(path, None, on_error="raise") as cap:
        y = x.sin()
        cap.forward_end()
        z = y.cos().exp()
        z.sum().backward()
        cap.step()
    names = ns.open_run(path).calls.column("name").to_pylist()
    assert names == ["Tensor.sin.0.forward", "Tensor.sin.0.backward"]


def test_aten_operators_of_backward_belong_to_a_forward_operator(tmp_path):
    layer = nn.Linear(4, 3)

    def work():
        F.relu(layer(torch.randn(2, 4))).sum().backward()

    run = record(tmp_path, layer, work, level="aten")
    rows = run.calls.to_pylist()
    by_order = {row["order"]: row for row in rows}
    relu = next(row for row in rows if row["name"] == "Aten.threshold_backward.0.backward")
    assert by_order[relu["forward"]]["name"] == "Aten.relu.0.forward"
    products = [row for row in rows if row["name"].startswith("Aten.mm.") and row["phase"] == "backward"]
    assert products
    assert {by_order[row["forward"]]["name"] for row in products} == {"Aten.addmm.0.forward"}


def test_an_inner_modules_value_used_outside_it_is_counted_once(tmp_path):
    class Inner(nn.Module):
        def forward(self, x):
            self.kept = x.sin()
            return self.kept.exp()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x) * self.inner.kept

    model = Outer()
    x = torch.randn(5, requires_grad=True)
    expected = torch.autograd.grad(model(x).sum(), x)[0]
    run = record(tmp_path, model, lambda: model(x).sum().backward())
    assert_same(run.tensor("Module.Outer.backward.0.output.0"), expected)


def test_the_graph_goes_with_the_loss_without_the_collector(tmp_path):
    class Saved:
        def __init__(self, tensor):
            self.tensor = tensor.detach()

    saved = []

    def pack(tensor):
        value = Saved(tensor)
        saved.append(weakref.ref(value))
        return value

    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.GELU()), nn.Linear(4, 2))

    def work():
        gc.disable()
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value.tensor):
                loss = model(torch.randn(3, 4)).sum()
            assert any(reference() is not None for reference in saved)
            del loss
            assert not any(reference() is not None for reference in saved)
        finally:
            gc.enable()

    record(tmp_path, model, work)


def test_layers_called_on_their_own_keep_their_gradients_and_names_apart(tmp_path):
    torch.manual_seed(0)
    body, head = nn.Linear(4, 3), nn.Linear(3, 2)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)

    def work():
        head(body(torch.randn(5, 4)).relu()).sum().backward()
        optimizer.step()

    run = record(tmp_path, None, work)
    assert_same(run.tensor("Module.Linear.backward.0.parameters_grad.weight"), body.weight.grad)
    assert_same(run.tensor("Module.Linear1.Linear.backward.0.parameters_grad.weight"), head.weight.grad)
    slots = [
        row["slot"] for row in run.tensors.to_pylist() if row["name"].startswith("Optimizer.SGD.step.0.parameters.")
    ]
    assert slots == ["parameters.weight", "parameters.bias", "parameters.Linear1.weight", "parameters.Linear1.bias"]


def test_a_loss_called_beside_the_model_takes_none_of_its_gradients(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.scale

    model, loss = Scaled(), nn.CrossEntropyLoss()

    def work():
        loss(model(torch.randn(4, 3)), torch.tensor([0, 1, 2, 0])).backward()

    run = record(tmp_path, None, work)
    assert_same(run.tensor("Module.Scaled.backward.0.parameters_grad.scale"), model.scale.grad)
