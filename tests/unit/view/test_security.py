"""Who is not given the token, or asks from another site, gets nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from numscope.core.errors import SettingsError
from numscope.view.app import Viewer, create_app
from numscope.view.recent import Memory
from numscope.view.security import Access
from numscope.view.server import serve

PORT = 8123
HERE = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def access() -> Access:
    return Access(port=PORT)


@pytest.fixture
def client(access: Access, tmp_path) -> Iterator[TestClient]:
    viewer = Viewer(memory=Memory(tmp_path / "viewer.json"))
    with TestClient(create_app(viewer, access), base_url=HERE, follow_redirects=False) as client:
        yield client


def test_without_the_token_nothing_is_served(client: TestClient) -> None:
    for path in ("/", "/app.js", "/api/state", "/api/session", "/api/nothing"):
        assert client.get(path).status_code == 403
    assert client.get("/?token=wrong").status_code == 403
    assert client.get("/api/state", headers={"X-Numscope-Token": "wrong"}).status_code == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(client: TestClient, access: Access) -> None:
    answer = client.get(f"/?token={access.token}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/").status_code == 200
    assert client.get("/api/state").json()["state"] == "empty"


def test_the_token_is_taken_from_the_address_of_the_first_page_alone(client: TestClient, access: Access) -> None:
    assert client.get(f"/api/state?token={access.token}").status_code == 403


def test_a_script_may_send_the_token_in_a_header(client: TestClient, access: Access) -> None:
    headers = {"X-Numscope-Token": access.token}
    assert client.get("/api/state", headers=headers).status_code == 200
    assert client.post("/api/again", headers=headers).status_code == 400  # allowed in, with nothing to repeat


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", "", f"127.0.0.2:{PORT}"]
)
def test_another_host_is_refused(client: TestClient, access: Access, host: str) -> None:
    headers = {"Host": host, "X-Numscope-Token": access.token}
    assert client.get("/api/state", headers=headers).status_code == 403


def test_another_origin_is_refused(client: TestClient, access: Access) -> None:
    client.get(f"/?token={access.token}")
    for origin in ("https://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:1"):
        assert client.get("/api/state", headers={"Origin": origin}).status_code == 403
        assert client.post("/api/open", headers={"Origin": origin}, json={}).status_code == 403
    assert client.get("/api/state", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.get("/api/state", headers={"Origin": HERE}).status_code == 200


def test_what_changes_something_must_say_its_origin(client: TestClient, access: Access) -> None:
    client.get(f"/?token={access.token}")
    assert client.post("/api/open", json={}).status_code == 403
    answer = client.post("/api/open", json={}, headers={"Origin": HERE})
    assert answer.status_code == 400
    assert "name a run" in answer.json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/app.js",
        "/app.js/../../app.py",
        "/index.html",
        "/api/../app.py",
    ],
)
def test_no_other_file_can_be_asked_for(client: TestClient, access: Access, path: str) -> None:
    client.get(f"/?token={access.token}")
    answer = client.get(path)
    assert answer.status_code in (400, 404)
    assert "root:" not in answer.text


def test_every_answer_forbids_foreign_code(client: TestClient, access: Access) -> None:
    client.get(f"/?token={access.token}")
    for path in ("/", "/app.js", "/api/state", "/nothing"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_hosts_of_a_server_for_others() -> None:
    access = Access(port=PORT, host="0.0.0.0")
    assert access.knows(f"192.168.1.7:{PORT}")
    assert not access.knows(f"rebound.example:{PORT}")
    assert access.url.startswith(f"http://127.0.0.1:{PORT}/?token=")


def test_other_machines_are_let_in_only_on_demand() -> None:
    with pytest.raises(SettingsError, match="--allow-remote"):
        serve(Viewer(), host="0.0.0.0", open_browser=False)


def test_two_tokens_differ() -> None:
    assert Access(port=1).token != Access(port=1).token
    assert len(Access(port=1).token) >= 32
