"""`numscope demo`: two runs of a small GPT, one with a real bug: captured, compared, and the line named.

Every step is one of the commands a user would type, run as it is printed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from numscope.core.errors import CaptureError, SettingsError, writing

HELP = "see it work: a small GPT, one wrong line, found"

STORY = """\
A small GPT is trained for two steps. Then it is ported, and trained again: same weights, same data, same seeds.
The losses agree to five digits. Is the rest rounding, or a bug? And if it is a bug: which line?
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("demo"), help="where to write (default: demo)")


def run(args: argparse.Namespace) -> int:
    out: Path = args.out
    require_torch()
    with writing(out):
        reference, ported = copy_script("reference.py", out), copy_script("ported.py", out)
    target_run, reference_run = out / "runs" / "target", out / "runs" / "reference"
    report = out / "report.html"

    print(f"numscope demo\n\n{STORY}")
    print("1. Capture both. The scripts know nothing of numscope.\n", flush=True)
    for script, directory in ((reference, reference_run), (ported, target_run)):
        status = numscope("run", "--keep", "tensors", "--overwrite", "--out", directory, "--", script)
        if status != 0:
            raise CaptureError(f"the demo's capture ended with status {status}: see the lines above")

    print("2. Compare: the target first, then the reference.\n", flush=True)
    status = numscope("compare", target_run, reference_run, "--html", report)
    if status > 1:
        return status

    print(f"3. Your turn. {report} is the whole answer in one file, to open or to send.\n")
    for what, command in (
        ("look around", ("view", target_run, reference_run)),
        ("and why?", ("diagnose", target_run, reference_run)),
        ("all calls", ("show", target_run, "*gelu*", "--stack")),
    ):
        print(f"   {what:12} {typed(command)}")
    print(f"   {'put it right':12} edit the line in {ported}, and run {typed(('demo', *out_option(out)))} again")
    return 0


def require_torch() -> None:
    # Asked here, in words, because otherwise the captured script would fail with a traceback of its own.
    if find_spec("torch") is None:
        raise SettingsError("the demo trains a model with PyTorch, which is not installed: pip install torch")


def copy_script(name: str, out: Path) -> Path:
    """Copy a script into `out`, outside the package as user code is, unless it is there; return the path of the copy."""
    text = resources.files("numscope.demo").joinpath(name).read_text(encoding="utf-8")
    path = out / name
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path
    present = path.read_text(encoding="utf-8", errors="replace")
    if present.partition("\n")[0] != text.partition("\n")[0]:
        raise SettingsError(f"{path} is not the demo's own file: remove it, or choose another place with --out")
    if present != text:
        print(f"{path} was edited: it is used as it is (remove it to have the first form again)", file=sys.stderr)
    return path


def numscope(*words: str | Path) -> int:
    """Print the command, and run it."""
    print(f"   $ {typed(words)}", flush=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    status = subprocess.run([sys.executable, "-m", "numscope", *map(str, words)], env=environment).returncode
    print(flush=True)
    return status


def typed(words: tuple[str | Path, ...]) -> str:
    """Return the command as the user types it in this shell."""
    beside = Path(sys.executable).with_name("numscope")
    if shutil.which("numscope"):
        program = "numscope"
    elif beside.exists():
        program = os.path.relpath(beside)
    else:
        program = f"{os.path.basename(sys.executable)} -m numscope"
    return " ".join([program, *(shlex.quote(str(word)) for word in words)])


def out_option(out: Path) -> tuple[str | Path, ...]:
    return () if out == Path("demo") else ("--out", out)
