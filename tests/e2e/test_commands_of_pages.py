"""Commands of the pages: each is one that the parsers take, and those of the tutorials' blocks `sh` are run, in their order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from numscope.__main__ import main
from numscope.commands import available, grammar, module_of
from numscope.core.errors import NumscopeError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", ROOT / "SKILL.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.exists()]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
TRAIN = """
import sys

import torch
from torch import nn

torch.manual_seed(0)
form = "tanh" if "--new" in sys.argv else "none"
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(approximate=form), nn.Linear(16, 4))
batch = torch.randn(6, 8)
if "--bf16" in sys.argv:
    model, batch = model.bfloat16(), batch.bfloat16()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    loss = model(batch).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def commands(page: Path, kind: str | None = None) -> list[str]:
    """Return the lines of a page's blocks that call numscope, those that go on in the next line joined."""
    found = []
    for language, block in BLOCK.findall(page.read_text()):
        if kind is None or language == kind:
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.strip().removeprefix("$ ") for line in lines]
    return [line for line in found if line.startswith("numscope ") and "COMMAND" not in line]


def words_of(line: str) -> list[str]:
    words = shlex.split(line.partition(" #")[0].partition(" > ")[0])[1:]
    return [word for word in words if word not in ("…", "...", "[options]")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_every_page_is_one(page: Path) -> None:
    import importlib

    for line in commands(page):
        name, *arguments = words_of(line)
        if name.startswith("-"):
            continue
        assert name in available(), f"{line}: there is no command {name}"
        parser = grammar.parser_of(name, importlib.import_module(module_of(name)))
        try:
            parser.parse_args(grammar.with_bare_json(arguments))
        except NumscopeError as error:
            pytest.fail(f"{line}: {error}")
        except SystemExit:  # -h
            pass


TUTORIALS = [page for page in PAGES if commands(page, "sh")]


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_commands_of_a_tutorial_run(page: Path, prepared: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for line in commands(page, "sh"):
        name, *arguments = words_of(line)
        if name == "run":
            arguments = ["--overwrite", *arguments]
            status = subprocess.run([sys.executable, "-m", "numscope", name, *arguments], cwd=prepared).returncode
            assert status == 0, line
        else:
            here = Path.cwd()
            os.chdir(prepared)
            try:
                assert main([name, *arguments]) in (0, 1), f"{line}\n{capfd.readouterr().err}"
            finally:
                os.chdir(here)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the script and the runs that the tutorials speak of."""
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "train.py").write_text(TRAIN)
    for out, options in (("target", ["--new"]), ("reference", [])):
        command = [
            sys.executable,
            "-m",
            "numscope",
            "run",
            "--keep",
            "tensors",
            "--out",
            f"runs/{out}",
            "--",
            "train.py",
        ]
        subprocess.run([*command, *options], cwd=folder, check=True)
    return folder
