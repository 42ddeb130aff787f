"""C and C++ sources of ours, compiled on the user's machine when they are first needed.

What is compiled is kept in the user's cache folder, under a name that tells apart all that makes another library. Where there
is no compiler, no place to write to, or anything else is missing, whoever asks does without: slower, not wrong.
`NUMSCOPE_NATIVE=0` asks for that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

VARIABLE = "NUMSCOPE_NATIVE"
_SECONDS = 60  # that a compiler may take


def is_wanted() -> bool:
    """Tell whether compiled functions may be used in this process."""
    return os.environ.get(VARIABLE) != "0" and os.name == "posix" and sys.maxsize >= 2**63 - 1


def compiled(
    name: str, sources: Sequence[Path], compiler: Sequence[str], flags: Sequence[Sequence[str]], parts: Sequence[str],
    try_out: Callable[[Path], None],
) -> Path:  # fmt: skip
    """Return the library of these sources, compiled if it is not there yet; raise where that can't be.

    `flags`: what the compiler is told, and what it is told instead if it can't do that; `parts`: what else makes another
    library; `try_out` raises where one does not do what it should.
    """
    import hashlib

    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
    texts = *(source.read_text() for source in sources), *map(" ".join, flags), *parts
    key = "\0".join((*texts, sys.platform, os.uname().machine, libc or ""))
    path = _cache() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        files = [str(source) for source in sources if source.suffix != ".h"]
        _compile(path, [[*compiler, *files, *some] for some in flags], try_out)
    return path


def program(variable: str, *usual: str) -> list[str]:
    """Return the command of a compiler: what the variable says, or the first of the usual ones that is there."""
    import shlex
    import shutil

    return shlex.split(os.environ.get(variable, "")) or [next(filter(None, map(shutil.which, usual)), usual[-1])]


def vector_flags() -> list[str]:
    """Return what a C compiler is to be told of this machine's processor."""
    try:
        with open("/proc/cpuinfo") as file:
            known = set(file.read(8192).partition("flags")[2].partition("\n")[0].split())
    except OSError:
        known = set()
    wanted = ("avx2", "fma", "f16c")
    return [f"-m{one}" for one in wanted] if known.issuperset(wanted) else []


def _cache() -> Path:
    """Return the folder of what is compiled: the user's own, to which nobody else can write."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else Path.home() / ".cache") / "numscope"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written to by others")
    return folder


def _compile(path: Path, commands: Sequence[Sequence[str]], try_out: Callable[[Path], None]) -> None:
    """Compile by the first of these commands that can, try it out, and put it in its place; others may do the same now."""
    import subprocess
    import tempfile

    if sys.stderr is not None and sys.stderr.isatty():
        print("numscope: compiling its fast loops; once, a few seconds", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        for command in commands:
            full = [*command, "-o", str(made)]
            result = subprocess.run(full, capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
            if result.returncode == 0:
                break
        else:
            raise RuntimeError(f"{commands[0][0]} could not compile {path.name}")
        try_out(made)
        os.replace(made, path)
