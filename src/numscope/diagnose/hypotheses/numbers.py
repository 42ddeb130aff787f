"""Numbers as people know them: 0.35355339 is 1/√8."""

from __future__ import annotations

import math


def spoken(value: float) -> str:
    """Return a number with what it is made of, where that can be told: `0.3535534 (1/√8)`."""
    made = recognise(value)
    plain = f"{value:.7g}"
    return f"{plain} ({made})" if made and made != plain else plain


def recognise(value: float) -> str | None:
    """Return n, 1/n, √n, 1/√n, √(m/n), m/n or a power of ten that a number is, or None."""
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
