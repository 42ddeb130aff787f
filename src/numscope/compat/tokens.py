"""Words that only select: `acc_cmp_dump`, `wrap_acc_cmp_hook` and their kin are passed to register_hook, never called."""

from __future__ import annotations

from typing import Any

from numscope.core.errors import SettingsError


class Token:
    """One such word."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise SettingsError(f"{self.name} is not to be called: pass it to register_hook(model, {self.name})")


def chosen(hook: Any, known: tuple[Token, ...]) -> Token:
    """Return the token that was passed, or say which there are."""
    if isinstance(hook, Token) and hook in known:
        return hook
    names = ", ".join(token.name for token in known)
    raise SettingsError(f"register_hook got {hook!r}: pass one of {names}, imported from here")
