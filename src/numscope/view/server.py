"""Serves the viewer on this machine until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable

from numscope.core.errors import MissingExtraError, SettingsError

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from numscope.view.app import Viewer as Viewer
    from numscope.view.app import create_app
    from numscope.view.forms import EitherForms as EitherForms
    from numscope.view.security import Access, is_loopback
except ImportError as error:  # pragma: no cover - both are there in this repository
    raise MissingExtraError(error.name or "starlette", "the viewer") from error


PATIENCE = 10.0  # seconds in which a client must have said what it asks for
MOST_CLIENTS = 2000  # connections; with 64 KB of headers each, 128 MB


class PromptClients(H11Protocol):
    """HTTP with clients that ask at once: one that dribbles is let go, so that it holds no place."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give a new client its time."""
        super().connection_made(transport)
        self.waiting = asyncio.get_running_loop().call_later(PATIENCE, self.let_go)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a client."""
        self.waiting.cancel()
        super().connection_lost(exc)

    def let_go(self) -> None:
        """Close the connection where nothing was asked."""
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def say_where(url: str) -> None:
    """Print the address."""
    print(f"numscope viewer: {url}\n(Ctrl-C stops it)", flush=True)


def serve(
    viewer: Viewer,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_remote: bool = False,
    open_browser: bool = True,
    announce: Callable[[str], None] = say_where,
) -> None:
    """Serve until interrupted; the address, with its token, goes to `announce`."""
    if not is_loopback(host) and not allow_remote:
        raise SettingsError(
            f"--host {host} lets other machines read these runs: add --allow-remote if that is meant, "
            f"or forward the port: ssh -L {port or 8000}:127.0.0.1:{port or 8000} …"
        )
    listener = _listen(host, port)
    _, bound, *_ = listener.getsockname()
    access = Access(port=bound, host=host)
    if not is_loopback(host):
        print(
            f"warning: serving on {host}: everyone who can reach this machine and has the address below "
            "can read these runs; the connection is not encrypted",
            file=sys.stderr,
        )
    config = uvicorn.Config(
        create_app(viewer, access),
        http=PromptClients,
        ws="none",
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1,
        limit_concurrency=MOST_CLIENTS,
        access_log=False,
    )
    announce(access.url)
    if open_browser and _has_browser():
        threading.Thread(target=webbrowser.open, args=(access.url,), daemon=True).start()
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's delay off: 40 ms less for every answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"cannot serve on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from None
    listener.listen(64)
    return listener


def _has_browser() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True
