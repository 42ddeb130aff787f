"""Hooks of our own on autograd nodes, without the removable handles that torch makes: nothing removes our hooks singly.

`Node.register_hook` calls a Python function of torch that makes a dictionary of hooks and a handle; the handle is half the
cost of a hook. While capture is on, that function makes no handle for our hooks on nodes without other hooks. Somebody
else's hook finds the dictionary as torch would have made it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch.autograd import function

from numscope.capture.torch.autograd.backward import NodeHook
from numscope.capture.torch.patching import replace
from numscope.capture.torch.thread import Undo

_OURS = -1  # torch's handles count from 0

Hook = Callable[..., object]
Hooks = OrderedDict[int, Hook]
Register = Callable[[Hooks | None, Hook], tuple[Hooks, object]]


class WithoutHandles:
    """Makes our own hooks cheaper to register."""

    def install(self) -> Undo:
        """Replace torch's function that makes a hook's handle; return a function that puts it back."""
        owner = getattr(function, "_HookMixin", None)
        original = vars(owner).get("_register_hook") if owner is not None else None
        if not isinstance(original, staticmethod):  # another torch, which registers hooks in another way
            return lambda: None
        return replace(owner, "_register_hook", staticmethod(partial(self.registered, original.__func__)))

    def registered(self, register: Register, hooks: Hooks | None, hook: Hook) -> tuple[Hooks, object]:
        """Return the hooks of a node with one more, and its handle; `register`: torch's own function."""
        if hooks is not None or type(hook) is not NodeHook:
            return register(hooks, hook)
        return OrderedDict({_OURS: hook}), None
