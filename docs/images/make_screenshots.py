"""Makes the pictures of docs/howto/viewer.md: every page of a real comparison, in both themes.

PYTHONPATH=src:. python docs/images/make_screenshots.py [OUT]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numscope as ns
from numscope.view.session import Session
from tests.e2e.browser import chromium, ready, serving, watch

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "e2e" / "runs.py"
TRAIN = """from pathlib import Path
from model import train

train(Path("runs/npu"), wrong=True)
train(Path("runs/gpu"), wrong=False)
train(Path("runs/overflow"), wrong=False, explode=True, keep="stats")
"""
PAGES = {
    "answer": ("answer", "[data-testid=origin]"),
    "story": ("story", "[data-testid=plot] canvas"),
    "calls": ("calls", ".line .badge"),
    "model": ("model", ".node.on"),
    "tensor": ("tensor/{origin}/output.0", "[data-testid=values] td"),
}


def main(out: Path) -> None:
    """Capture, compare, photograph."""
    out = out.absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        train()
        compared = Session.of_comparison(ns.compare("runs/npu", "runs/gpu"))
        compared.diagnose()
        alone = Session.of_run(ns.open_run("runs/overflow"))
        origin = compared.summary["origin_row"]
        shots = [(compared, name, *place) for name, place in PAGES.items()] + [(alone, "run", *PAGES["answer"])]
        with chromium() as browser:
            for session, name, path, wait in shots:
                with serving(ready(session)) as access:
                    for theme in ("light", "dark"):
                        size = {"width": 1280, "height": 1500 if name == "tensor" else 800}
                        page = browser.new_page(viewport=size, color_scheme=theme)
                        faults = watch(page)
                        page.goto(f"{access.url}#/{path.format(origin=origin)}")
                        page.wait_for_selector(wait)
                        page.wait_for_timeout(400)
                        page.screenshot(path=out / f"{name}-{theme}.png")
                        page.close()
                        if faults:
                            raise SystemExit(f"{name}: {faults}")


def train() -> None:
    """Capture the runs by a script of their own, so that the stacks are those of a user's job."""
    Path("train").mkdir()
    shutil.copy(SCRIPT, "train/model.py")
    Path("train/train.py").write_text(TRAIN)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    subprocess.run([sys.executable, "train/train.py"], check=True, env=environment)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent))
