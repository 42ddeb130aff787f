"""The words of a repair: an argument's value as Python writes it, a number in closed form (0.35355339 is 1/√8)."""

from __future__ import annotations

import math

import torch

from numscope.diagnose.recorded.invocation import Invocation, TensorRef, holds_tensor


def value_words(value: object) -> str:
    """Return an argument's value as a repair shows it: `1e-06`, `'tanh'`, `float32`, `[:, 1:17]`, `a tensor`."""
    if isinstance(value, TensorRef):
        return "a tensor"
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, float):
        return f"{value:g}" if value == float(f"{value:g}") else repr(round(value, 10) or value)
    if isinstance(value, slice):
        ends = ["" if part is None else value_words(part) for part in (value.start, value.stop)]
        return ":".join(ends) + (f":{value_words(value.step)}" if value.step is not None else "")
    if isinstance(value, (list, tuple)):
        inner = ", ".join(value_words(item) for item in value)
        is_index = any(isinstance(item, slice) or item is Ellipsis for item in value)
        return f"({inner})" if isinstance(value, tuple) and not is_index else f"[{inner}]"
    return "..." if value is Ellipsis else repr(value)


def plain_argument_words(made: Invocation) -> str:
    """Return the arguments of a call that are not tensors: ` (0.5, dim=1)`; empty where there are none."""
    shown = [value_words(value) for value in made.args if not holds_tensor(value)]
    shown += [f"{name}={value_words(value)}" for name, value in made.kwargs.items() if not holds_tensor(value)]
    return f" ({', '.join(shown)})" if shown else ""


def spoken(value: float) -> str:
    """Return a number, with its closed form where it has one: `0.3535534 (1/√8)`."""
    made = recognise(value)
    plain = f"{value:.7g}"
    return f"{plain} ({made})" if made and made != plain else plain


def recognise(value: float) -> str | None:
    """Return the closed form of a number, n, 1/n, √n, 1/√n, m/n or √(m/n), or None."""
    if not math.isfinite(value) or value == 0:
        return None
    sign = "-" if value < 0 else ""
    size = abs(value)
    for form, number in (("{}", size), ("1/{}", 1 / size), ("√{}", size**2), ("1/√{}", 1 / size**2)):
        if _whole(number) and 1 <= number <= 1e7 and not (form != "{}" and round(number) == 1):
            return sign + form.format(round(number))
    for denominator in range(2, 101):
        if _whole(size * denominator):
            return f"{sign}{round(size * denominator)}/{denominator}"
    for denominator in range(2, 65):
        if _whole(size**2 * denominator):
            return f"{sign}√({round(size**2 * denominator)}/{denominator})"
    return None


def _whole(number: float) -> bool:
    return number >= 0.5 and abs(number - round(number)) <= 5e-7 * max(1.0, number)
