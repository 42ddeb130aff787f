"""Detects which tool wrote a dump: asks each format in turn, the most specific first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from numscope.core.errors import RunError, SettingsError
from numscope.core.untrusted import reading
from numscope.store.formats import hooktools, msprobe, plain_folder, ptdbg, saving_hook
from numscope.store.formats.foreign import Dump, ForeignStep
from numscope.store.rundir import MANIFEST, listing


class Format(NamedTuple):
    """A format: `find` returns the files of a dump under a path, or nothing where the path holds none."""

    find: Callable[[Path], object]
    read: Callable[[Path, bool], Dump]


FORMATS = {
    "msprobe": Format(msprobe.find, msprobe.read),
    "ptdbg": Format(ptdbg.files_of, ptdbg.read),
    "torch_npu": Format(lambda path: ptdbg.files_of(path) or ptdbg.async_files(path), ptdbg.read),
    "saving_hook": Format(saving_hook.find, saving_hook.read),
    "hooktools": Format(hooktools.find, hooktools.read),
    "plain": Format(plain_folder.find, plain_folder.read),
}


def _each(steps: Iterable[ForeignStep], path: Path) -> Iterator[ForeignStep]:
    """Yield the steps of a dump; some formats read them only now."""
    with reading(path):
        yield from steps


def open_dump(path: Path, form: str | None = None, trust_pickle: bool = False) -> Dump:
    """Return the dump under a path, in the format named or the one that is found."""
    if not path.exists():
        raise RunError(f"{path} does not exist: give the folder or file that the other tool wrote")
    if form is not None and form not in FORMATS:
        raise SettingsError(f"unknown format {form!r}: there are {', '.join(FORMATS)}")
    if path.is_dir() and (path / MANIFEST).exists():
        raise RunError(f"{path} is a numscope run already: give it to numscope compare as it is")
    for name in [form] if form else FORMATS:
        if FORMATS[name].find(path):
            with reading(path):
                dump = FORMATS[name].read(path, trust_pickle)
            return replace(dump, steps=_each(dump.steps, path))
    what = (
        f"a {form} dump"
        if form
        else "a dump of msprobe, ptdbg_ascend, torch_npu, saving_hook, hooktools, or tensor files"
    )
    held = listing(path) if path.is_dir() else path.name
    raise RunError(f"{path} is not {what} (found: {held or 'nothing'}): give what the other tool wrote")
