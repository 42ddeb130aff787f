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
# Code that runs in a process of numscope's own, in which there is no job: it sets the grad mode that it needs.
NO_JOB = (
    "diagnose/accuracy",
    "diagnose/explain",
    "diagnose/regions",
    "diagnose/replay",
    "diagnose/repro",
    "diagnose/weights.py",
)
GRAD_MODES = ("no_grad", "enable_grad", "set_grad_enabled")
# Names that hide work from modes, hooks, autograd or Dynamo → the files that may use them.
SPELLINGS = {
    "DisableTorchFunction": {
        "capture/torch/own_code.py",
        "capture/torch/thread.py",
        "capture/torch/verify/mode.py",  # runs the job's operator where the user's function mode has seen it already
    },
    "DisableTorchFunctionSubclass": set(),
    "BaseTorchFunctionMode": set(),
    "_pop_mode": {  # takes its own mode out from under later ones
        "diagnose/intervene/reroute.py",
        "capture/torch/install.py",
    },
    "_pop_torch_function_stack": set(),
    "_pop_torch_dispatch_stack": set(),
    "_pop_mode_temporarily": set(),
    "_set_torch_function_state": set(),
    "_disable_current_modes": set(),
    "_DisableTorchDispatch": set(),
    "_unset_dispatch_mode": set(),
    "no_dispatch": set(),
    "_DisableFuncTorch": set(),
    "_ExcludeDispatchKeyGuard": {"capture/torch/own_code.py"},
    "_AutoDispatchBelowAutograd": set(),
    "_AutoDispatchBelowADInplaceOrView": set(),
    "no_grad": {
        "fingerprint/torch_form.py",  # used outside a job, too: knows no capture
        "fingerprint/torch_complex.py",  # likewise
        "fingerprint/cuda/stream.py",  # likewise
        "testing/models.py",  # puts the user's buffers back when the capture is over
    },
    "enable_grad": set(),
    "inference_mode": {
        "capture/torch/guard/flags.py",  # False: its tensors outlive the user's inference mode
        "capture/torch/native/__init__.py",  # tries out a compiled library
        "fingerprint/torch_form.py",  # False, as above
    },
    "set_grad_enabled": set(),
    "_set_grad_enabled": {"capture/torch/own_code.py"},
    "set_eval_frame": {
        "capture/torch/own_code.py",
        "capture/torch/levels/compiled.py",  # watches the user's compiled regions
    },
    "_maybe_set_eval_frame": set(),
    "set_stance": set(),
    "skip_code": {"capture/torch/own_code.py"},
    "disallow_in_graph": set(),
    "_dynamo.disable": set(),
    "_dynamo.run": set(),
    "compiler.disable": set(),
    "disable_saved_tensors_hooks": set(),
    "set_multithreading_enabled": set(),
}
SETS_BUSY = {
    "capture/torch/own_code.py",
    "capture/torch/thread.py",  # its first value
    "capture/paddle/own_code.py",
    "capture/paddle/watch.py",  # its first value
}


def spellings(source):
    """Yield (line, spelling) of each place in a source that marks our own code by itself."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            names = [node.attr, f"{owner}.{node.attr}"]
            if node.attr == "busy" and isinstance(node.ctx, ast.Store):
                yield node.lineno, "busy"
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").rpartition(".")[2]
            for alias in node.names:
                names += [alias.name, f"{module}.{alias.name}"]
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("setattr", "__setattr__", "getattr", "attrgetter"):
                names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            if "busy" in names and called in ("setattr", "__setattr__"):
                yield node.lineno, "busy"
        for name in names:
            if name in SPELLINGS:
                yield node.lineno, name


def used():
    """Return {(file, spelling): lines} over the package."""
    lines = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        for line, spelling in spellings(path.read_text()):
            if spelling not in GRAD_MODES or not name.startswith(NO_JOB):
                lines.setdefault((name, spelling), []).append(line)
    return lines


def test_own_code_is_the_only_way_to_hide_our_work():
    allowed = {**SPELLINGS, "busy": SETS_BUSY}
    wrong = [
        f"{name}:{lines}: {spelling}" for (name, spelling), lines in used().items() if name not in allowed[spelling]
    ]
    assert not wrong, "use OwnCode or OwnComputation (capture/torch/own_code.py):\n" + "\n".join(wrong)


def test_no_exception_from_that_rule_is_left_over():
    exceptions = {(name, spelling) for spelling, names in SPELLINGS.items() for name in names}
    exceptions |= {(name, "busy") for name in SETS_BUSY}
    assert exceptions == set(used())


@pytest.mark.parametrize(
    ("source", "spelling"),
    [
        ("state.busy = True", "busy"),
        ("setattr(state, 'busy', True)", "busy"),
        ("with torch._C.DisableTorchFunction(): pass", "DisableTorchFunction"),
        ("with torch._C.DisableTorchFunctionSubclass(): pass", "DisableTorchFunctionSubclass"),
        ("@torch._dynamo.disable\ndef f(): pass", "_dynamo.disable"),
        ("@torch.compiler.disable\ndef f(): pass", "compiler.disable"),
        ("from torch._dynamo import disable", "_dynamo.disable"),
        ("set_frame = eval_frame.set_eval_frame(None)", "set_eval_frame"),
        ("from torch._C._dynamo.eval_frame import set_eval_frame", "set_eval_frame"),
        ("with torch.no_grad(): pass", "no_grad"),
        ("getattr(torch, 'no_grad')()", "no_grad"),
        ("@torch.no_grad()\ndef f(): pass", "no_grad"),
        ("with torch.autograd.grad_mode.no_grad(): pass", "no_grad"),
        ("from torch import inference_mode as quietly", "inference_mode"),
        ("state.busy |= True", "busy"),
        ("object.__setattr__(state, 'busy', True)", "busy"),
        ("getattr(torch._C, 'DisableTorchFunction')()", "DisableTorchFunction"),
        ("with torch._C._DisableTorchDispatch(): pass", "_DisableTorchDispatch"),
        ("from torch.utils._python_dispatch import _disable_current_modes", "_disable_current_modes"),
        (
            "while torch._C._len_torch_function_stack(): torch._C._pop_torch_function_stack()",
            "_pop_torch_function_stack",
        ),
        ("with torch._C._ExcludeDispatchKeyGuard(keys): pass", "_ExcludeDispatchKeyGuard"),
        ("with torch._C._AutoDispatchBelowAutograd(): pass", "_AutoDispatchBelowAutograd"),
        ("torch.compiler.set_stance('force_eager')", "set_stance"),
    ],
)
def test_each_spelling_is_seen(source, spelling):
    assert spelling in [name for _, name in spellings(source)]


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
