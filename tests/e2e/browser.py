"""The system's chromium and a server in this process: what the browser tests and the screenshots stand on."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from numscope.view.app import Viewer, create_app
from numscope.view.jobs import Job
from numscope.view.security import Access
from numscope.view.server import _listen
from numscope.view.session import Session

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
GONE = (
    "net::ERR_CONNECTION_REFUSED",
    "net::ERR_CONNECTION_RESET",
    "net::ERR_EMPTY_RESPONSE",
    "net::ERR_INCOMPLETE_CHUNKED_ENCODING",
)
PATIENCE = 60  # seconds to wait for a state: a busy machine is no failure
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def serving(viewer: Viewer) -> Iterator[Access]:
    """Serve a viewer on a free port of this machine."""
    listener = _listen("127.0.0.1", 0)
    access = Access(port=listener.getsockname()[1])
    config = uvicorn.Config(create_app(viewer, access), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield access
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser, headless, with a fresh profile and no network of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def ready(session: Session) -> Viewer:
    """Return a viewer that has this session open."""
    job = Job("test")
    job.run(lambda tell: session)
    return Viewer(job=job)


def watch(page: Any) -> list[str]:
    """Return a list that fills with what goes wrong on a page: errors, console errors, requests to elsewhere.

    A server is often stopped before the page is closed: that it is gone is no fault of the page's.
    """
    faults: list[str] = []

    def hear(message: Any) -> None:
        if message.type in ("error", "warning") and not message.text.endswith(GONE):
            faults.append(message.text)

    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("console", hear)
    local = ("http://127.0.0.1", "data:", "blob:", "file:")
    page.on("request", lambda r: None if r.url.startswith(local) else faults.append(f"asked {r.url}"))
    return faults


def until(page: Any, expression: str, argument: Any = None) -> None:
    """Wait until an expression holds; Playwright's own waiting evaluates text in the page, which our policy forbids."""
    end = time.monotonic() + PATIENCE
    while not page.evaluate(expression, argument):
        if time.monotonic() > end:
            raise AssertionError(f"never became true: {expression}")
        page.wait_for_timeout(25)


def drawn(page: Any) -> None:
    """Wait until the page has drawn what it knew when this was called, and has heard of the pointer."""
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
    )


def point_on(page: Any, places: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Move the pointer over places until a point of the plot is under it; return where that is."""
    for x, y in places:
        page.mouse.move(x, y)
        drawn(page)
        if page.locator("[data-testid=tip]").count():
            return x, y
    raise AssertionError("no point of the plot was met")
