"""Mutations of files: bytes and numbers changed, pieces left out, repeated, exchanged."""

from __future__ import annotations

import random
import re

_ODD = [b"", b"0", b"-1", b"1e999", b"NaN", b"null", b"[]", b"{}", b'""', b"..", b"/", b"\x00", b"\xff\xfe", b"\x1b[2J"]
_ODD += [
    b"99999999999999999999",
    b"18446744073709551615",
    b"[[[[[[[[[[[[[[[[",
    b"true",
    b'{"a":',
    b"\xed\xa0\x80",
    b"=1+1",
]
_WORD = re.compile(rb"[A-Za-z_][A-Za-z_0-9]*|-?\d+(?:\.\d+)?|\"[^\"]{0,40}\"")


def mutated(good: bytes, rng: random.Random) -> bytes:
    """Return a file that is nearly a good one."""
    content = bytearray(good)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(content) + 1)
        size = rng.choice((1, 2, 4, 8, 64))
        how = rng.randrange(7)
        if how == 0 and content:
            content[at % len(content)] ^= 1 << rng.randrange(8)
        elif how == 1:
            content[at : at + size] = rng.randbytes(size)
        elif how == 2:
            del content[at : at + size]
        elif how == 3:
            content[at:at] = content[at : at + size] * rng.choice((1, 3, 50))
        elif how == 4:
            del content[at:]
        elif how == 5:
            content[at:at] = rng.choice(_ODD)
        elif words := list(_WORD.finditer(content[:100_000])):  # a word or number of a text
            word = rng.choice(words)
            content[word.start() : word.end()] = rng.choice((*_ODD, rng.choice(words)[0]))
    return bytes(content)
