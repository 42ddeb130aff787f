"""Makes answer.svg, the README's picture: what `numscope compare` and `numscope diagnose` print of the demo's runs.

python docs/images/make_answer.py [OUT]
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

WIDTH = 98
RUNS = ("demo/runs/target", "demo/runs/reference")
# rich's own format without the fonts that it would load from a network
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def main(out: Path) -> None:
    """Run the demo, then both commands in a terminal, and draw their output."""
    out = out.absolute()
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        subprocess.run([sys.executable, "-m", "numscope", "demo"], check=True, stdout=subprocess.DEVNULL)
        for command, begin, end in (
            ("compare", "DIVERGED", "largest differences"),
            ("diagnose", "mechanism", "own error"),
        ):
            console.print(Text.assemble(("$ ", "bold green"), " ".join(["numscope", command, *RUNS])), soft_wrap=True)
            lines = in_terminal([sys.executable, "-m", "numscope", command, *RUNS]).splitlines()
            first, last = (next(n for n, line in enumerate(lines) if words in line) for words in (begin, end))
            for line in lines[first:last]:
                console.print(Text.from_ansi(line), soft_wrap=True)
            if lines[last - 1]:
                console.print()
    text = console.export_svg(title="numscope", theme=DIMMED_MONOKAI, code_format=FORMAT, unique_id="answer")
    out.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def in_terminal(command: list[str]) -> str:
    """Run a command in a pseudo-terminal and return its standard output, with colours and without the progress bar."""
    parts: list[bytes] = []

    def read(descriptor: int) -> bytes:
        parts.append(os.read(descriptor, 1 << 16))
        return parts[-1]

    os.environ.update(COLUMNS=str(WIDTH), TERM="xterm-256color")
    own, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # pty.spawn copies to stdout
    try:
        pty.spawn(["sh", "-c", f"exec {shlex.join(command)} 2>/dev/null"], read)
    finally:
        os.dup2(own, 1)
    return b"".join(parts).decode().replace("\r", "")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("answer.svg"))
