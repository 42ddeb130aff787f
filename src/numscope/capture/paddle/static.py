"""Functions that Paddle compiles (`paddle.jit.to_static`): our replacements are taken away while one runs.

The compiler reads the bytecode of every function it meets and crashes on our replacements. The compiled layer or function
is recorded from outside; its inside is not seen.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from numscope.capture.paddle.watch import Undo, subclasses


def pause_in_static(pause: Callable[[], None], resume: Callable[[], None]) -> Undo:
    """Call `pause` before a compiled function runs and `resume` after it; return a function that ends this."""
    from paddle.jit.dy2static import program_translator

    inside = threading.local()
    replaced = []

    def wrapper(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def __call__(function: program_translator.StaticFunction, *args: object, **kwargs: object) -> object:
            if getattr(inside, "depth", 0):
                return original(function, *args, **kwargs)
            inside.depth = 1
            pause()
            try:
                return original(function, *args, **kwargs)
            finally:
                inside.depth = 0
                resume()

        return __call__

    for kind in subclasses(program_translator.StaticFunction):
        original = kind.__dict__.get("__call__")
        if original is not None:
            replaced.append((kind, original))
            kind.__call__ = wrapper(original)

    def undo() -> None:
        for kind, original in replaced:
            kind.__call__ = original

    return undo
