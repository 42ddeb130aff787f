"""A thousand requests at once, slow clients and huge queries: each has an answer or is let go, in bounded memory."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from numscope.view import server
from numscope.view.app import Viewer
from numscope.view.jobs import Job
from numscope.view.recent import Memory
from numscope.view.session import Session

Address = tuple[int, str]  # port, token


@pytest.fixture
def address(tmp_path: Path, compared: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """A viewer of a real comparison, served on the loopback interface as `numscope view` does."""
    viewer = Viewer(memory=Memory(tmp_path / "viewer.json"))
    viewer.shown = compared
    told: list[str] = []
    running: list[server.uvicorn.Server] = []
    plain = server.uvicorn.Server

    def remembered(config: server.uvicorn.Config) -> server.uvicorn.Server:
        running.append(plain(config))
        return running[0]

    monkeypatch.setattr(server.uvicorn, "Server", remembered)
    thread = threading.Thread(
        target=lambda: server.serve(viewer, open_browser=False, announce=told.append), daemon=True
    )
    thread.start()
    while not (running and running[0].started):
        time.sleep(0.01)
    found = re.search(r":(\d+)/\?token=(.*)", told[0])
    assert found
    yield int(found[1]), found[2]
    running[0].should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def request(path: str, address: Address, method: str = "GET", body: bytes = b"", more: str = "") -> bytes:
    port, token = address
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Numscope-Token: {token}\r\n{length}{more}"
    return f"{head}Connection: close\r\n\r\n".encode() + body


async def ask(content: bytes, port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(content)
        await writer.drain()
        return await reader.read()
    except ConnectionError:  # closed before all was sent
        return b""
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def memory() -> float:
    text = Path("/proc/self/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    assert found
    return int(found[1]) / 1024


def threads() -> int:
    return threading.active_count()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory is read from /proc")
def test_a_thousand_requests_at_once_are_answered(address: Address) -> None:
    paths = [
        "/api/session",
        "/api/rows?table=calls&limit=2000",
        "/api/state",
        "/",
        "/app.js",
        "/api/rows?table=slots",
    ]

    async def all_at_once() -> list[bytes]:
        asked = [ask(request(paths[n % len(paths)], address), address[0]) for n in range(1000)]
        return await asyncio.wait_for(asyncio.gather(*asked), 60)

    asyncio.run(ask_once(address))
    before, count = memory(), threads()
    answers = asyncio.run(all_at_once())
    assert {status(answer) for answer in answers} <= {200, 400}  # there may be no such table
    assert sum(status(answer) == 200 for answer in answers) >= 800
    received = sum(map(len, answers)) / (1 << 20)
    assert memory() - before < 256 + received  # what the client was sent is in this process, too
    assert threads() <= count + 40
    assert status(asyncio.run(ask_once(address))) == 200


async def ask_once(address: Address) -> bytes:
    return await ask(request("/api/state", address), address[0])


def test_a_client_that_dribbles_is_let_go(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.5)

    async def dribble() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", address[0])
        writer.write(b"GET /api/state HT")
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return answer

    async def many() -> list[bytes]:
        return await asyncio.gather(*(dribble() for _ in range(100)), ask_once(address))

    answers = asyncio.run(many())
    assert {status(answer) for answer in answers[:-1]} <= {0, 400}
    assert status(answers[-1]) == 200


@pytest.mark.parametrize(
    "content",
    [
        "/api/rows?q=" + "a" * 50_000,
        "/api/rows?table=" + "x" * 5000,
        "/api/rows?limit=99999999999999999999&offset=-7",
        "/api/rows?offset=99999999999999999999999",
        "/api/rows?regex=1&q=" + "(a%2B)%2B" * 50 + "$",
        "/api/rows?regex=1&q=(((",
        "/api/rows?columns=" + "step," * 5000,
        "/api/rows?sort=nothing&step=1,2,x",
        "/api/story?limit=999999999&start=-5&end=99999999999999",
        "/api/tensor/999999/output.0/values?offset=99999999",
        "/api/tensor/0/..%2f..%2f..%2fetc%2fpasswd/histogram",
        "/api/group?group=" + "%00" * 100,
        "/%00",
        "//etc/passwd",
        "/..;/etc/passwd",
    ],
)
def test_odd_queries_have_an_answer_and_are_no_fault_of_ours(address: Address, content: str) -> None:
    answer = asyncio.run(asyncio.wait_for(ask(request(content, address), address[0]), 20))
    assert status(answer) in (200, 400, 404, 405)
    assert b"root:" not in answer
    assert b"Traceback" not in answer


def test_a_request_larger_than_any_is_let_go(address: Address) -> None:
    content = request("/api/rows?q=" + "a" * 200_000, address)
    assert status(asyncio.run(ask(content, address[0]))) in (0, 400)
    assert status(asyncio.run(ask_once(address))) == 200


def test_a_body_is_taken_up_to_its_limit(address: Address) -> None:
    large = request("/api/open", address, "POST", b'{"target": "' + b"x" * 20_000_000)
    assert status(asyncio.run(ask(large, address[0]))) in (0, 400)
    deep = request("/api/open", address, "POST", b"[" * 500_000)
    assert status(asyncio.run(ask(deep, address[0]))) == 400
    assert status(asyncio.run(ask_once(address))) == 200


def test_without_the_token_a_body_is_not_read(address: Address) -> None:
    content = request("/api/open", (address[0], "wrong"), "POST", b"x" * 20_000_000)
    assert status(asyncio.run(ask(content, address[0]))) in (0, 403)
    assert status(asyncio.run(ask_once(address))) == 200


def test_a_rebound_name_is_refused(address: Address) -> None:
    content = request("/api/state", address).replace(b"Host: 127.0.0.1", b"Host: rebound.example")
    assert status(asyncio.run(ask(content, address[0]))) == 403
    twice = request("/api/state", address, more="Host: rebound.example\r\n")
    assert status(asyncio.run(ask(twice, address[0]))) in (400, 403)


def test_streams_of_progress_leave_the_server_able_to_answer(address: Address, tmp_path: Path) -> None:
    assert Job("idle")
    answers = asyncio.run(_events(address))
    assert {status(answer) for answer in answers} <= {200, 400}


async def _events(address: Address) -> list[bytes]:
    return await asyncio.wait_for(
        asyncio.gather(*(ask(request("/api/events", address), address[0]) for _ in range(60)), ask_once(address)), 30
    )
