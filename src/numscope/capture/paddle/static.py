"""Functions that Paddle compiles (`paddle.jit.to_static`): while one runs, nothing of ours is in its way.

The compiler reads the bytecode of what it meets, our replacements included, and dies of them. The layer or function is
recorded from outside; its inside is not seen.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from numscope.capture.paddle.watch import Undo


def pause_in_static(pause: Callable[[], None], resume: Callable[[], None]) -> Undo:
    """Call `pause` before a compiled function runs and `resume` after it; return what ends that."""
    from paddle.jit.dy2static import program_translator

    inside = threading.local()
    replaced = []

    def wrapper(original: Any) -> Any:
        @functools.wraps(original)
        def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:
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

    for kind in _classes(program_translator.StaticFunction):
        original = kind.__dict__.get("__call__")
        if original is not None:
            replaced.append((kind, original))
            kind.__call__ = wrapper(original)

    def undo() -> None:
        for kind, original in replaced:
            kind.__call__ = original

    return undo


def _classes(base: Any) -> Iterator[Any]:
    yield base
    for kind in base.__subclasses__():
        yield from _classes(kind)
