"""Makes the pictures of docs/howto/viewer.md: every page of a real comparison, in both themes.

PYTHONPATH=src:. python docs/images/make_screenshots.py [OUT]
"""

from __future__ import annotations

import importlib
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numscope as ns
from numscope.view.session import Session
from tests.e2e.browser import chromium, ready, serving, watch

SCRIPT = Path(__file__).parents[2] / "tests" / "e2e" / "runs.py"
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
        shutil.copytree(SCRIPT.parent, "train", ignore=lambda _, names: [name for name in names if name != SCRIPT.name])
        sys.path.insert(0, folder)
        runs = importlib.import_module("train.runs")  # a path that a reader could have
        runs.train(Path("runs/npu"), wrong=True)
        runs.train(Path("runs/gpu"), wrong=False)
        runs.train(Path("runs/overflow"), wrong=False, explode=True, keep="stats")
        compared = Session.of_comparison(ns.compare("runs/npu", "runs/gpu"))
        alone = Session.of_run(ns.open_run("runs/overflow"))
        origin = compared.summary["origin_row"]
        shots = [(compared, name, *place) for name, place in PAGES.items()] + [(alone, "run", *PAGES["answer"])]
        with chromium() as browser:
            for session, name, path, wait in shots:
                with serving(ready(session)) as access:
                    for theme in ("light", "dark"):
                        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=theme)
                        faults = watch(page)
                        page.goto(f"{access.url}#/{path.format(origin=origin)}")
                        page.wait_for_selector(wait)
                        page.wait_for_timeout(400)
                        if name == "tensor":
                            page.mouse.wheel(0, 420)
                            page.wait_for_timeout(200)
                        small(page.screenshot(), out / f"{name}-{theme}.png")
                        page.close()
                        if faults:
                            raise SystemExit(f"{name}: {faults}")


def small(picture: bytes, path: Path) -> None:
    """Write a picture with 256 colours, which these pages have to spare: a third of the size."""
    from PIL import Image

    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent))
