"""The compiled functions of capture record what Python's do: the same job with and without them leaves the same tables."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from itertools import compress, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import numscope as ns
from numscope.capture.recording.unwritten import UnwrittenLimit
from numscope.capture.torch import native
from numscope.capture.torch.identity.carried_over import CarriedTensor
from numscope.capture.torch.identity.tensors import Tensors
from numscope.capture.torch.levels import api, modules
from numscope.core import compiling
from tests.integration.models import CASES
from tests.integration.test_api_usual import Net, program, tables

pytestmark = pytest.mark.skipif(native.load() is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand over at the ends of steps alone: rows are in order within a batch, and on a slow machine a step takes seconds."""
    monkeypatch.setattr(UnwrittenLimit, "start", lambda _: None)


@contextmanager
def counted(monkeypatch: Any):
    """Count the calls that Python's functions do while the compiled ones are in their place."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        function = vars(owner)[name]
        monkeypatch.setattr(owner, name, lambda *args: (counts.update([name]), function(*args))[1])

    for owner, name in ((api, "_begin"), (modules.Modules, "_path")):
        count(owner, name)
    yield counts


def assert_alike(one: list[dict[Any, list[str]]], other: list[dict[Any, list[str]]]) -> None:
    assert len(one) == len(other)
    for step, (here, there) in enumerate(zip(one, other)):
        written = [dtype != "uint8" for dtype in here["tensors", "dtype"]]  # an LSTM's workspace is not, in part
        for column in here:
            those = written if column[0] == "tensors" else repeat(True)
            assert list(compress(here[column], those)) == list(compress(there[column], those)), (step, column)


def captured(path: Path, case: str, **settings: Any) -> list[dict[Any, list[str]]]:
    torch.manual_seed(0)
    model, _, step = CASES[case]()
    with ns.capture(path, model, on_error="raise", **settings) as cap:
        for index in range(3):
            step(index)
            cap.step()
    return tables(path)


@pytest.mark.parametrize("level", ["module", "api", "mix", "aten"])
@pytest.mark.parametrize("case", CASES)
def test_a_job_is_recorded_alike(tmp_path: Path, case: str, level: str) -> None:
    captured(tmp_path / "first", case, level=level)  # what torch does once in a process
    compiled = captured(tmp_path / "compiled", case, level=level)
    with native.without():
        python = captured(tmp_path / "python", case, level=level)
    assert_alike(compiled, python)


@pytest.mark.parametrize(
    "settings",
    [
        {"keep": "structure"},
        {"keep": "tensors"},
        {"keep": "sample"},
        {"backward": False},
        {"parameters": False},
        {"stacks": False},
        {"scope": "*.1.*"},
        {"optimizer": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("level", ["mix", "aten"])
def test_whatever_is_asked_for_is_recorded_alike(tmp_path: Path, level: str, settings: dict[str, Any]) -> None:
    found = []
    for name, without in (("first", nullcontext), ("compiled", nullcontext), ("python", native.without)):
        with without():
            found.append(captured(tmp_path / name, "transformer with dropout", level=level, **settings))
    assert_alike(found[1], found[2])


@pytest.mark.parametrize("level", ["api", "aten"])
@pytest.mark.parametrize("seed", range(20, 40))
def test_random_programs_are_recorded_alike(tmp_path: Path, seed: int, level: str) -> None:
    found = []
    for name, without in (("first", nullcontext), ("compiled", nullcontext), ("python", native.without)):
        with without(), ns.capture(tmp_path / name, None, level=level, on_error="raise") as capture:
            for step in range(2):
                program(seed * 2 + step)
                capture.step()
        found.append(tables(tmp_path / name))
    assert_alike(found[1], found[2])


@pytest.mark.parametrize("level", ["mix", "aten"])
def test_calls_of_all_kinds_are_recorded_alike(tmp_path: Path, level: str) -> None:
    found = []
    for name, without in (("first", nullcontext), ("compiled", nullcontext), ("python", native.without)):
        torch.manual_seed(0)
        model = Net()
        tokens = torch.randint(20, (3, 5))
        with without(), ns.capture(tmp_path / name, model, level=level, on_error="raise") as capture:
            for _ in range(2):
                F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten()).backward()
                capture.step()
        found.append(tables(tmp_path / name))
    assert_alike(found[1], found[2])


class Tagged(torch.Tensor):
    """A tensor of the job's own class."""


def odd_job(region: Any, layer: torch.nn.Module) -> torch.Tensor:
    """Call operators of tensors that are none of the usual ones, with a compiled region among them."""
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    with FakeTensorMode() as mode:
        fake = F.gelu(torch.ones(2, 3)) @ torch.ones(3, 2)
    (fake + 1).sum()
    mode.from_tensor(x.detach()).exp()
    functional = torch._to_functional_tensor(x.detach().clone())
    torch._sync(functional)
    repr(functional)
    torch.func.functionalize(lambda y: y.clone().add_(1).view(3, 2).sin())(x.detach())
    torch.func.vmap(lambda y: layer(y).tanh())(x.detach())
    torch.func.grad(lambda y: region(y).sum())(x.detach())
    wrapped = F.relu(TwoTensor(x.detach().clone(), x.detach().clone()) * 2)
    tagged = layer((x * 1).as_subclass(Tagged)).as_subclass(torch.Tensor)
    sparse = x.detach().to_sparse() * 2
    meta = torch.ones(2, device="meta") + 1
    complex_ = torch.view_as_complex(torch.ones(3, 2)).conj() * 2
    with torch.inference_mode():
        torch.ones(3).mul_(2)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged) * 2
    del wrapped, sparse, meta, nested
    return region(tagged * 2).sum() + region(x).sum() + complex_.real.sum()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["module", "mix", "aten"])
def test_unusual_tensors_and_compiled_regions_are_recorded_alike(tmp_path: Path, level: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = torch.nn.Linear(3, 3)
    region = torch.compile(lambda y: layer(y).sin() * y, backend="aot_eager")
    found, losses = [], []
    for name, without in (("first", nullcontext), ("compiled", nullcontext), ("python", native.without)):
        with without(), ns.capture(tmp_path / name, layer, level=level, on_error="raise") as capture:
            for _ in range(2):
                layer.zero_grad()
                loss = odd_job(region, layer)
                loss.backward()
                losses.append((loss.item(), float(layer.weight.grad.sum())))
                capture.step()
        found.append(tables(tmp_path / name))
    assert_alike(found[1], found[2])
    layer.zero_grad()
    loss = odd_job(region, layer)
    loss.backward()
    assert set(losses) == {(loss.item(), float(layer.weight.grad.sum()))}


def test_usual_calls_do_not_come_to_pythons_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20)))
    x = torch.ones(2, 4)
    with ns.capture(tmp_path / "run", model, level="mix", on_error="raise") as capture:
        model(x).sum().backward()
        capture.step()
        with counted(monkeypatch) as counts:
            (model(x) * 2 + 1).sum().backward()
            capture.step()
    assert sum(counts.values()) <= 4, counts
    assert ns.open_run(tmp_path / "run").calls.num_rows > 150


def test_python_stands_in_again_without(tmp_path: Path) -> None:
    assert native.adopt()
    methods = [(method.owner, method.name) for method in native._METHODS]
    with native.without():
        assert not native.adopt()
        assert all(hasattr(vars(owner)[name], "__code__") for owner, name in methods)
    assert not any(hasattr(vars(owner)[name], "__code__") for owner, name in methods)


def test_a_fault_of_ours_is_counted_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where recording fails inside the compiled functions, the job gets its results all the same."""

    def failing(*args: Any) -> Any:
        raise ZeroDivisionError("ours")

    x = torch.ones(3, requires_grad=True)
    for level in ("api", "aten"):
        with ns.capture(tmp_path / level, None, level=level) as capture:
            (x * 2).sum().backward()
            capture.step()
            monkeypatch.setattr(Tensors, "layout", failing)
            with pytest.warns(UserWarning, match="could not record a call.*ours"):
                y = torch.sin(torch.ones(5, 7))  # a form that is not known
            monkeypatch.undo()
            assert torch.equal(y, torch.sin(torch.ones(5, 7)))
            (x * 3).sum().backward()
            capture.step()
        assert any("ours" in why for why in ns.open_run(tmp_path / level).skipped())
        with ns.capture(tmp_path / f"{level}-raise", None, level=level, on_error="raise"):
            monkeypatch.setattr(Tensors, "layout", failing)
            with pytest.raises(ZeroDivisionError, match="ours"):
                torch.sin(torch.ones(5, 7))
            monkeypatch.undo()


def test_an_error_of_the_jobs_is_the_jobs(tmp_path: Path) -> None:
    with ns.capture(tmp_path / "run", None, level="api", on_error="raise") as capture:
        for _ in range(2):
            a = torch.ones(2, 3)
            torch.mm(a, a.t())
            with pytest.raises(RuntimeError, match="mat1 and mat2"):
                torch.mm(a, a)
            with suppress(KeyboardInterrupt):
                raise KeyboardInterrupt
            torch.mm(a.t(), a)
            capture.step()
    calls = ns.open_run(tmp_path / "run").calls.to_pylist()
    assert [call["error"] is not None for call in calls if call["name"].startswith("Torch.mm")] == [
        False,
        True,
        False,
    ] * 2


def test_nothing_of_the_job_is_held(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    with ns.capture(tmp_path / "run", model, level="mix", on_error="raise") as capture:
        for _ in range(3):
            y = model(torch.ones(2, 4))
            graph = weakref.ref(y)
            y.sum().backward()
            del y
            assert graph() is None
            capture.step()
    reference = weakref.ref(model)
    del model, capture
    gc.collect()
    assert reference() is None


def test_counts_of_references_are_right(tmp_path: Path) -> None:
    """Reference counts: no object gains or loses references by being recorded."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
    x, scale, marker = torch.ones(8, 4), 1.5, ("a name of this test", 3)

    def step() -> None:
        torch.add(model(x), x, alpha=scale).view(8, 4).sum(dim=0, keepdim=False).sum().backward()
        with suppress(RuntimeError):
            torch.mm(x, x)

    for level in ("mix", "aten"):
        with ns.capture(tmp_path / level, model, level=level, on_error="raise") as capture:
            for _ in range(5):
                step()
                capture.step()
            capture._recorder.settle(), gc.collect()  # neither the writer's thread nor what is gone holds any
            watched = (x, scale, marker, model, None, True, False, -1, (), torch.Tensor, torch.add, "input", "backward")
            before = [sys.getrefcount(one) for one in watched]
            for _ in range(200):
                step()
                capture.step()
            capture._recorder.settle(), gc.collect()
            after = [sys.getrefcount(one) for one in watched]
        assert not [(i, b, a) for i, (b, a) in enumerate(zip(before, after)) if abs(b - a) >= 150]


def test_several_threads_have_their_own_calls(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                model(torch.randn(300, 64)).sum().backward()
        except BaseException as error:
            errors.append(error)

    with ns.capture(tmp_path / "run", model, level="mix", on_error="raise"):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    run = ns.open_run(tmp_path / "run")
    names = Counter(run.calls.column("name").to_pylist())
    assert max(names.values()) == 1
    assert sum(name.startswith("Functional.linear.") and name.endswith(".forward") for name in names) == 160
    assert run.tensors.column("hash").null_count == 0


@pytest.mark.parametrize("change", [{"NUMSCOPE_NATIVE": "0"}, {"CXX": "/nowhere/c++"}])
def test_where_they_cannot_be_had_python_does_it_all(tmp_path: Path, change: dict[str, str]) -> None:
    script = (
        "import sys, torch, numscope as ns\n"
        "from numscope.capture.torch import native\n"
        "with ns.capture(sys.argv[1], None, level='api', on_error='raise'): torch.ones(3).sin()\n"
        "print(native.load() is None, ns.open_run(sys.argv[1]).calls.num_rows)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **change}
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["True", "2"]


def test_a_library_that_sees_other_tensors_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in native._SOURCES:
        text = (Path(native.__file__).parent / name).read_text()
        (tmp_path / name).write_text(
            text.replace("impl->storage_offset()), sizes", "impl->storage_offset() + 1), sizes")
        )
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(compiling, "_cache", lambda: tmp_path)
    assert native.load.__wrapped__() is None
    assert not list(tmp_path.glob("*.so"))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("level", ["mix", "aten"])
def test_what_an_optimizer_has_left_is_referred_to_alike(tmp_path: Path, level: str, fused: bool) -> None:
    """Also where the job writes to parameters between the steps, seen and unseen."""
    found = []
    for name, without in (("first", nullcontext), ("compiled", nullcontext), ("python", native.without)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        with without(), ns.capture(tmp_path / name, model, level=level, on_error="raise") as capture:
            for step in range(6):
                optimizer.zero_grad()
                model(torch.ones(3, 4)).square().mean().backward()
                optimizer.step()
                capture.step()
                with torch.no_grad():
                    if step == 1:
                        model[0].weight.mul_(2)
                    elif step == 2:
                        model[0].bias.data.zero_()
                    elif step == 3:
                        model[2].weight.numpy()[:] = 0.5
        found.append(tables(tmp_path / name))
    assert_alike(found[1], found[2])


def test_records_of_another_type_are_not_read_as_ours(tmp_path: Path) -> None:
    """Dynamo, where it compiles our Python, can put other objects in the place of ours: such are not known, and never read."""
    x = torch.ones(8, 4)
    held = weakref.ref(x)
    odd: list[Any] = [(held, 0), (), x, 7, None, CarriedTensor((), x._version, ()), CarriedTensor(x, x._version, x)]  # type: ignore[arg-type]
    library = native.load()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    with ns.capture(tmp_path / "run", model, level="aten", on_error="raise") as capture:
        known = capture._frontend.watch.tensors
        model(x)
        address = x.untyped_storage()._cdata
        for wrong in odd:
            for record in (known.cached, known.carried_over.by_storage):
                capture.step()
                known.cached.pop(id(x), None)
                assert library.number(known, x) >= 0
                known.carried_over.storage_of[id(x)] = address
                record[address if record is known.carried_over.by_storage else id(x)] = wrong
                assert library.number(known, x) >= 0
                assert library.look_up(known, x) >= 0
                known.carried_over.by_storage.clear()


@pytest.mark.parametrize(
    "name", ["look_up", "take", "hook_call", "call_function", "call_operator", "end_module", "walk"]
)
def test_what_is_called_with_other_objects_raises(name: str) -> None:
    for count in range(10):
        with pytest.raises(TypeError):
            getattr(native.load(), name)(*[torch.ones(2)] * count)
