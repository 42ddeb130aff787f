"""Numscope's C and C++ sources, compiled on the user's machine when they are first needed.

A library is kept in the user's cache folder; its name holds a hash of everything that would make another library of the
sources. Where there is no compiler, no writable folder, or anything else is missing, the caller goes on without the library:
slower, not wrong. `NUMSCOPE_NATIVE=0` forbids compiled functions.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

VARIABLE = "NUMSCOPE_NATIVE"
_SECONDS = 60  # that a compiler may take
_WARNINGS = ("-Wall", "-Wextra")  # a test compiles with -Werror


def is_wanted() -> bool:
    """Tell whether compiled functions may be used in this process."""
    return os.environ.get(VARIABLE) != "0" and os.name == "posix" and sys.maxsize >= 2**63 - 1


def compiled(
    name: str,
    sources: Sequence[Path],
    compiler: Sequence[str],
    flags: Sequence[Sequence[str]],
    parts: Sequence[str],
    try_out: Callable[[Path], None],
) -> Path:
    """Return the library of these sources, compiled if it is not there yet; raise where it cannot be compiled.

    `flags`: the compiler's flags, then alternatives for a compiler that does not know them; `parts`: further texts to hash
    into the library's name; `try_out` raises where a new library does not do what it should.
    """
    import hashlib

    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
    texts = *(source.read_text() for source in sources), *map(" ".join, flags), *parts
    key = "\0".join((*texts, sys.platform, os.uname().machine, libc or ""))
    path = _cache() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if not _is_ours(path):
        files = [str(source) for source in sources if source.suffix != ".h"]
        _compile(path, [[*compiler, *_WARNINGS, *files, *some] for some in flags], try_out)
    return path


def program(variable: str, *usual: str) -> list[str]:
    """Return the command of a compiler: the variable's value, or the first of the usual ones that is installed."""
    import shlex
    import shutil

    return shlex.split(os.environ.get(variable, "")) or [next(filter(None, map(shutil.which, usual)), usual[-1])]


def vector_flags() -> list[str]:
    """Return the C compiler's flags for the vector instructions of this processor."""
    try:
        with open("/proc/cpuinfo") as file:
            supported = set(file.read(8192).partition("flags")[2].partition("\n")[0].split())
    except OSError:
        supported = set()
    wanted = ("avx2", "fma", "f16c")
    return [f"-m{name}" for name in wanted] if supported.issuperset(wanted) else []


def _cache() -> Path:
    """Return the folder of compiled libraries: the user's own, to which nobody else can write."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else Path.home() / ".cache") / "numscope"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written to by others")
    return folder


def _is_ours(path: Path) -> bool:
    """Tell whether a library is the one that was compiled here: of this user, whom nobody else can write for, and whole."""
    import hashlib

    try:
        state, expected = path.lstat(), path.with_suffix(".sha256").read_text()
        mine = state.st_uid == os.getuid() and stat.S_ISREG(state.st_mode) and not state.st_mode & 0o022
        return mine and hashlib.sha256(path.read_bytes()).hexdigest() == expected
    except OSError:
        return False


def _compile(path: Path, commands: Sequence[Sequence[str]], try_out: Callable[[Path], None]) -> None:
    """Compile with the first command that succeeds, try the library out, and rename it into place: others may do so too."""
    import hashlib
    import subprocess
    import tempfile

    if sys.stderr is not None and sys.stderr.isatty():
        print("numscope: compiling its fast loops; once, a few seconds", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        library = Path(folder) / path.name
        for command in commands:
            full = [*command, "-o", str(library)]
            result = subprocess.run(full, capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
            if result.returncode == 0:
                break
        else:
            raise RuntimeError(f"{command[0]} could not compile {path.name}: {result.stderr.decode(errors='replace')}")
        try_out(library)
        library.chmod(0o700)
        digest = library.with_suffix(".sha256")
        digest.write_text(hashlib.sha256(library.read_bytes()).hexdigest())
        os.replace(library, path)
        os.replace(digest, path.with_suffix(".sha256"))
