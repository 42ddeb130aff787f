"""Access control: only a browser that has the token may ask, and only from the viewer's own pages.

A page on the internet can make a browser send requests to 127.0.0.1. So every request needs the random token (in the
printed address, then in a cookie, or in a header for scripts). The Host must be the one that is served, which stops DNS
rebinding. A request with an Origin must have ours, and a request that changes something must have one.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOKEN_HEADER = "x-numscope-token"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Access:
    """The token of a server and the addresses at which it may be reached."""

    port: int
    host: str = "127.0.0.1"
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        return f"numscope_{self.port}"  # cookies do not know ports, and two viewers may run

    @property
    def url(self) -> str:
        host = "127.0.0.1" if is_any(self.host) else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?token={self.token}"

    def knows(self, host: str) -> bool:
        """Tell whether a Host header is one of ours."""
        name, _, port = host.rpartition(":")
        if not port.isdecimal() or int(port) != self.port:
            return False
        if name in _LOOPBACK or name.strip("[]") == self.host:
            return True
        if is_loopback(self.host):
            return False
        # Served to others on purpose: an address cannot be rebound, a foreign name can.
        return _is_address(name.strip("[]")) or name.lower() in (socket.gethostname().lower(), socket.getfqdn().lower())


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_any(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware that refuses requests without the token or from other origins."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refuse(scope)
        await (answer or self.app)(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self.access.knows(host):
            return PlainTextResponse("numscope view: this Host is not served here\n", 403)
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return PlainTextResponse("numscope view: this Origin is not served here\n", 403)
        if headers.get("sec-fetch-site") == "cross-site" and scope["path"] != "/":
            return PlainTextResponse("numscope view: asked from another site\n", 403)
        if self._is_token(headers.get(TOKEN_HEADER, "")):
            return None
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if scope["path"] == "/" and self._is_token(query.pop("token", [""])[0]):
            # The token leaves the address bar, and with it the history and every screenshot.
            response = RedirectResponse(f"/?{urlencode(query, doseq=True)}" if query else "/", 303)
            response.set_cookie(self.access.cookie, self.access.token, httponly=True, samesite="strict", path="/")
            return response
        cookie = SimpleCookie(headers.get("cookie", "")).get(self.access.cookie)
        if cookie is None or not self._is_token(cookie.value):
            return PlainTextResponse("numscope view: open the address that `numscope view` printed\n", 403)
        if scope["method"] not in ("GET", "HEAD") and origin is None:
            return PlainTextResponse("numscope view: a request that changes something must say its Origin\n", 403)
        return None

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), self.access.token.encode())
