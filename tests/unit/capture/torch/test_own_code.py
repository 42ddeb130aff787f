"""Our own code inside the user's job is said to be ours in one way, and nothing of the job's sees it."""

import ast
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

import numscope
from numscope.capture.torch.own_code import OwnCode, OwnComputation
from numscope.capture.torch.thread import ThreadState

SOURCE = Path(numscope.__file__).parent
# Names that hide work from modes, autograd or Dynamo → the files whose own business they are.
SPELLINGS = {
    "DisableTorchFunction": {"capture/torch/own_code.py", "capture/torch/thread.py"},
    "_disable_current_modes": set(),
    "_DisableTorchDispatch": set(),
    "no_grad": {"capture/torch/own_code.py"},
    "set_grad_enabled": set(),
    "_set_grad_enabled": {"capture/torch/own_code.py"},
    "set_eval_frame": {
        "capture/torch/own_code.py",
        "capture/torch/levels/compiled.py",  # what is seen of compiled regions: the user's
    },
    "skip_code": set(),
}
IN_THE_JOB = ("capture/torch", "compat", "diagnose/intervene")  # what runs inside the user's job
SETS_BUSY = {
    "capture/torch/own_code.py",
    "capture/torch/thread.py",  # its first value
    "capture/paddle/own_code.py",
    "capture/paddle/watch.py",  # its first value
}


def spellings(path):
    """Return (line, what) of what in a file says by itself that our own code runs."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
            if node.attr == "busy" and isinstance(node.ctx, ast.Store):
                yield node.lineno, "busy"
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        for name in names:
            if name in SPELLINGS:
                yield node.lineno, name


def test_no_file_says_in_a_way_of_its_own_that_our_code_runs():
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        for line, what in spellings(path):
            if what == "busy":
                if name not in SETS_BUSY:
                    wrong.append(f"{name}:{line}: sets busy")
            elif name.startswith(IN_THE_JOB) and name not in SPELLINGS[what]:
                wrong.append(f"{name}:{line}: {what}")
    assert not wrong, "use OwnCode or OwnComputation (capture/torch/own_code.py):\n" + "\n".join(wrong)


class Watch:
    def __init__(self):
        self.thread = ThreadState()
        self.faults = []

    def fault(self, where, error):
        self.faults.append((where, str(error)))


class Seen(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_no_function_mode_sees_our_own_code_and_all_see_the_jobs_again():
    watch = Watch()
    x = torch.ones(2)
    with Seen() as seen:
        with OwnCode(watch):
            assert watch.thread.here.busy
            with OwnComputation(watch), OwnCode():
                x.sin()
            x.sin()
            assert watch.thread.here.busy
        assert not watch.thread.here.busy
        assert seen.calls == 0
        x.sin()
    assert seen.calls == 1


def test_what_the_compiled_functions_call_while_they_are_busy_is_hidden_too():
    watch = Watch()
    watch.thread.here.busy = True  # as they set it, without a guard against function modes
    with Seen() as seen, OwnCode(watch):
        torch.ones(2).sin()
    assert seen.calls == 0
    assert watch.thread.here.busy


def test_a_computation_of_ours_makes_no_graph_and_leaves_the_grad_mode_as_it_was():
    x = torch.ones(2, requires_grad=True)
    with OwnCode():
        assert x.sin().requires_grad
    with OwnComputation():
        assert not x.sin().requires_grad
    assert torch.is_grad_enabled()
    with torch.no_grad():
        with OwnComputation():
            pass
        assert not torch.is_grad_enabled()


def test_a_fault_is_counted_where_it_has_a_name_and_raised_where_it_has_none():
    watch = Watch()
    with OwnCode(watch, "a call"):
        raise ValueError("ours")
    assert watch.faults == [("a call", "ours")]
    with pytest.raises(ValueError, match="ours"), OwnCode(watch):
        raise ValueError("ours")
    with pytest.raises(KeyboardInterrupt), OwnComputation(watch, "a call"):
        raise KeyboardInterrupt
    assert len(watch.faults) == 1
    assert not watch.thread.here.busy
    assert torch.is_grad_enabled()


def ours(x):
    return x.sin() + 1


def hooked(x):
    with OwnCode():
        ours(x)
    return x


@pytest.mark.filterwarnings("ignore")
def test_dynamo_neither_traces_nor_compiles_our_own_code():
    torch._dynamo.reset()
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph

    module = torch.nn.Identity()

    @torch.compile(backend=backend)
    def region(x):
        y = x.cos()
        torch._dynamo.graph_break()
        module.register_forward_hook(lambda module, args, result: hooked(result))
        return module(y).exp()

    region(torch.ones(3))
    text = "".join(str(graph.code) for graph in seen)
    assert "cos" in text
    assert "exp" in text
    assert "sin" not in text
    torch._dynamo.reset()
