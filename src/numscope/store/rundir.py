"""Makes the directory of a run: checks that a run may be written there, and deletes only a run that is overwritten."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from numscope.core.errors import RunError
from numscope.core.json_value import JsonObject
from numscope.store.checksums import CURE, is_intact, sealed
from numscope.store.files import place
from numscope.store.remote.copies import is_url
from numscope.store.schema import FORMAT

MANIFEST = "manifest.json"
RANK = "rank.json"
STEPS = "steps.jsonl"
_REMEMBERED = 8  # manifests that were replaced
CLOSED = "closed"  # how a rank ended that nothing cut off
_RANK = re.compile(r"rank(?P<rank>\d+)")
_OURS = re.compile(r"manifest\.json|\.manifest\.json\.\d+\.tmp")


def here() -> str:
    """Return the working directory, or "" where it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def located(path: str | os.PathLike[str], home: str) -> Path:
    """Resolve a path against `home`, the working directory when it was given: the job may have changed it since."""
    return Path(path) if os.path.isabs(path) or here() == home else Path(home, path)


def rank_directories(path: Path) -> dict[int, Path]:
    """Return the rank directories of a run, by rank."""
    entries = {int(match["rank"]): entry for entry in path.iterdir() if (match := _RANK.fullmatch(entry.name))}
    return dict(sorted(entries.items()))


def listing(path: Path, limit: int = 4) -> str:
    """Return a few names of what a directory holds, for an error line."""
    names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "")


def check(path: Path, rank: int, overwrite: bool) -> None:
    """Raise where a run could not be written to a directory; make and delete nothing."""
    if is_url(f"{path}".replace(":/", "://", 1)):  # pathlib has made one slash of the two
        raise RunError(f"{path}: a run is written to a directory: give one, and copy it there when it is complete")
    _check_name(path)
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file: choose a directory for the run")
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise RunError(f"cannot write a run to {path} ({existing} is a file): choose another directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RunError(f"cannot write a run to {path} (no permission for {existing}): choose another directory")
    if existing != path:
        return
    foreign = [entry.name for entry in path.iterdir() if not _OURS.fullmatch(entry.name)]
    if foreign and not _is_run(path):  # files first: another rank may be making the run at this moment
        raise RunError(f"{path} is not empty and not a numscope run (found: {listing(path)}): choose another directory")
    if (path / f"rank{rank}").exists() and not overwrite:
        raise RunError(f"{path} already holds a run: choose another directory or pass overwrite=True (--overwrite)")


def _check_name(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:  # pyarrow takes paths in UTF-8 alone
        name = os.fsencode(path).decode(errors="backslashreplace")
        raise RunError(f"the path {name} is not in UTF-8: rename it, or choose another directory") from None


def create(path: Path, rank: int, manifest: JsonObject, overwrite: bool, yields: bool = False) -> Path:
    """Make the directories of the run and of this rank; return the rank's.

    `yields`: this process may turn out to be the one that starts the others; one of them may take the rank over, until a
    step has ended.
    """
    try:
        return _create(path, rank, manifest, overwrite, yields)
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"cannot write a run to {path} ({reason}): choose another directory") from error


def _create(path: Path, rank: int, manifest: JsonObject, overwrite: bool, yields: bool) -> Path:
    directory = path / f"rank{rank}"
    holder = holder_of(directory)
    taken_over = holder is not None and manifest.get("job") == holder.job
    if holder is not None and taken_over:
        if not holder.yields or yields or (directory / STEPS).stat().st_size:
            raise RunError(
                f"another process of this job writes rank {rank} of {path}: begin torch.distributed, or set RANK, before "
                "the first step"
            )
        shutil.rmtree(directory)
    check(path, rank, overwrite)
    path.mkdir(parents=True, exist_ok=True)
    if directory.exists():
        shutil.rmtree(directory)
    if overwrite and rank == 0:
        for stale, entry in rank_directories(path).items():
            written_now = manifest.get("job") and job_of(entry) == manifest["job"]
            if stale >= int(manifest.get("world_size") or 1) and not written_now:
                shutil.rmtree(entry, ignore_errors=True)
    replaces = (overwrite and rank == 0) or taken_over
    facts = {"format": FORMAT, **manifest, "id": secrets.token_hex(8), "checksums": True}
    if replaces:  # another rank of this job may have begun, or ended, already
        facts["replaces"] = _run_ids(path)
    document = sealed(facts)
    content = json.dumps(document, indent=1, ensure_ascii=False).encode()
    place(path / MANIFEST, content, replace=replaces)
    directory.mkdir()
    facts = {"rank": rank, "pid": os.getpid(), "job": manifest.get("job"), "devices": manifest.get("devices", [])}
    facts |= {"yields": yields, "id": secrets.token_hex(8)}
    if ids := _run_ids(path):  # the manifest of a run of many ranks may be any rank's
        facts["run"] = ids[0]
    place(directory / RANK, json.dumps(sealed(facts)).encode())
    return directory


def write_end(directory: Path, end: str, steps: int) -> None:
    """Write down how a rank ended, CLOSED, the class of an exception, or "" while it goes on, after how many steps."""
    facts = {"end": end, "steps": steps, "documents": _documents(directory)}
    if ids := _run_ids(directory.parent):  # by now the manifest is that of all ranks
        facts["run"] = ids[0]
    content = sealed({**json.loads((directory / RANK).read_bytes()), **facts})
    place(directory / RANK, json.dumps(content).encode(), replace=True)


def _run_ids(path: Path) -> list[str]:
    """Return the id of a run, and those of the manifests that its own has replaced."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        return [str(manifest["id"]), *map(str, manifest.get("replaces", ()))][:_REMEMBERED]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def read_rank(directory: Path) -> JsonObject:
    """Return the facts about a rank; nothing where it was killed before they were written."""
    path = directory / RANK
    try:
        facts = json.loads(path.read_bytes())
        if is_intact(facts):
            return dict(facts)
    except FileNotFoundError:
        if (directory / STEPS).exists():  # which is made later
            raise RunError(f"{path} is missing: {CURE}") from None
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}): {CURE}") from error
    raise RunError(f"{path} is damaged (its checksum is another): {CURE}")


def write_document(directory: Path, name: str, document: Mapping[str, object]) -> None:
    """Write a document about the job beside a rank's tables, with its checksum."""
    place(directory / name, json.dumps(sealed(document, id_of(directory))).encode(), replace=True)


def read_document(directory: Path, name: str) -> JsonObject | None:
    """Return a document about the job, None where the rank has none; raise where it is damaged, missing, or another's."""
    path, facts = directory / name, read_rank(directory)
    try:
        document: JsonObject = json.loads(path.read_bytes())
        intact = isinstance(document, dict) and is_intact(document, str(facts.get("id", "")), needed="id" in facts)
    except FileNotFoundError:
        if name in facts.get("documents", ()):
            raise RunError(f"{path} is missing: {CURE}") from None
        return None
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}): {CURE}") from error
    if not intact:
        raise RunError(f"{path} is damaged, or another run's (its checksum is another): {CURE}")
    return document


def documents_of(directory: Path) -> list[str]:
    """Return the names of the documents about the job that a rank has, or should have."""
    facts = read_rank(directory)
    if facts.get("end"):
        return sorted(str(name) for name in facts.get("documents", ()))
    return _documents(directory)


def _documents(directory: Path) -> list[str]:
    return sorted({entry.name for entry in directory.glob("*.json")} - {RANK})


def id_of(directory: Path) -> str:
    """Return the id of a rank, which its files carry."""
    return str(read_rank(directory).get("id", ""))


def add_to_manifest(path: Path, facts: JsonObject) -> None:
    """Add facts to a run's manifest that were not known when the run began."""
    content = sealed({**json.loads((path / MANIFEST).read_bytes()), **facts})
    place(path / MANIFEST, json.dumps(content, indent=1, ensure_ascii=False).encode(), replace=True)


class Holder(NamedTuple):
    """The process that writes a rank."""

    job: str
    pid: int
    yields: bool  # another process of its job may take the rank over


def holder_of(directory: Path) -> Holder | None:
    """Return which process of which job of `numscope run` writes a rank's directory, or None where that is not recorded."""
    try:
        facts = json.loads((directory / RANK).read_bytes())
        return Holder(str(facts["job"]), int(facts["pid"]), bool(facts.get("yields"))) if facts["job"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def job_of(directory: Path) -> str | None:
    """Return the job that wrote a rank's directory, or None where that is not recorded."""
    holder = holder_of(directory)
    return None if holder is None else holder.job


def _is_run(path: Path) -> bool:
    try:
        return str(json.loads((path / MANIFEST).read_bytes())["format"]).startswith("numscope.run/")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_manifest(path: Path) -> JsonObject:
    """Return a run's manifest; raise with the reason where the path is no run that can be read."""
    _check_name(path)
    try:
        content = (path / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(_no_manifest(path)) from None
    except OSError as error:
        raise RunError(f"{path / MANIFEST} cannot be read ({error.strerror}): check its permissions") from error
    try:
        manifest = json.loads(content)
        written = str(manifest["format"])
    except (ValueError, KeyError, TypeError):
        raise RunError(
            f"{path / MANIFEST} is not a numscope manifest: copy it again from where the run was made"
        ) from None
    if written != FORMAT:
        raise RunError(
            f"{path} is in the format {written}, this numscope reads {FORMAT}: upgrade numscope, or capture again"
        )
    if not is_intact(manifest):
        raise RunError(f"{path / MANIFEST} is damaged (its checksum is another): {CURE}")
    return dict(manifest)


def _no_manifest(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist: give the directory that capture wrote"
    if not path.is_dir():
        return f"{path} is a file, a run is a directory: give the directory that capture wrote"
    if _RANK.fullmatch(path.resolve().name) and (path.resolve().parent / MANIFEST).exists():
        return f"{path} is one rank of a run: give {path.parent}"
    inner = sorted(entry.name for entry in path.iterdir() if (entry / MANIFEST).exists())
    if inner:
        return f"{path} holds runs, it is not one: give {path / inner[0]}" + (
            f" (or {', '.join(inner[1:4])})" if inner[1:] else ""
        )
    if not any(path.iterdir()):
        return f"{path} is empty: give the directory that capture wrote"
    layout = _layout(path)
    hint = f" — {layout}; try `numscope import`" if layout else ""
    return f"{path} has no {MANIFEST}: is it a numscope run? (found: {listing(path)}{hint})"


def _layout(path: Path) -> str:
    """Return whose layout a directory has, or "" where it is no known tool's."""
    for pattern in ("dump.json", "rank*/dump.json", "step*/dump.json", "step*/rank*/dump.json"):
        if any(path.glob(pattern)):
            return "msprobe's layout"
    for pattern in ("*.pkl", "rank*/*.pkl", "step*/rank*/*.pkl", "*/rank*/*.pkl"):
        if any(path.glob(pattern)):
            return "ptdbg_ascend's layout"
    return ""
