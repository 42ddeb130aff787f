"""Hooks of our own on autograd nodes, without the handles that torch makes for them: nobody would ever ask for those.

`Node.register_hook` has a Python function of torch's make a dictionary and a handle, and the handle is half of what a hook
costs. While capture is on that function makes none for our hooks on nodes that have no other; a hook of anybody else
finds the dictionary that it would have found.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

from torch.autograd import function

from numscope.capture.torch.autograd.backward import NodeHook
from numscope.capture.torch.thread import Undo

_OURS = -1  # torch's handles count from 0


def registered(plain: Any, hooks: Any, hook: Any) -> Any:
    """Return the hooks of a node with one more, and its handle: `plain` does that in torch."""
    if hooks is not None or type(hook) is not NodeHook:
        return plain(hooks, hook)
    hooks = OrderedDict()
    hooks[_OURS] = hook
    return hooks, None


class WithoutHandles:
    """Makes hooks of our own cheaper to register."""

    def install(self) -> Undo:
        """Replace torch's function that makes a hook's handle; return what puts it back."""
        owner: Any = getattr(function, "_HookMixin", None)
        original: Any = vars(owner).get("_register_hook") if owner is not None else None
        if not isinstance(original, staticmethod):  # a torch that does it in another way
            return lambda: None
        ours = owner._register_hook = staticmethod(partial(registered, original.__func__))

        def undo() -> None:
            if vars(owner)["_register_hook"] is ours:
                owner._register_hook = original

        return undo
