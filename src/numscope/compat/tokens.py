"""Tokens such as `acc_cmp_dump` and `wrap_acc_cmp_hook`, which are passed to register_hook and never called."""

from __future__ import annotations

from typing import NoReturn

from numscope.core.errors import SettingsError


class Token:
    """A name that selects a kind of hook."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise SettingsError(f"{self.name} is not to be called: pass it to register_hook(model, {self.name})")


def chosen(hook: object, known: tuple[Token, ...]) -> Token:
    """Return the token that was passed; raise where it is none of these."""
    if isinstance(hook, Token) and hook in known:
        return hook
    names = ", ".join(token.name for token in known)
    raise SettingsError(f"register_hook got {hook!r}: pass one of {names}, imported from here")
