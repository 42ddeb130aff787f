"""The server's answers over HTTP, on a real comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from numscope.report.pages.frames import MEDIA_TYPE, decode
from numscope.view.app import STATIC, Viewer, create_app
from numscope.view.forms import EitherForms, RunForms, above, in_range
from numscope.view.jobs import Job
from numscope.view.recent import Memory, runs_near
from numscope.view.security import Access
from numscope.view.session import Session

HERE = "http://127.0.0.1:8123"


def client_of(viewer: Viewer) -> TestClient:
    access = Access(port=8123)
    return TestClient(create_app(viewer, access), base_url=HERE, headers={"X-Numscope-Token": access.token})


@pytest.fixture
def client(compared: Session, tmp_path: Path) -> Iterator[TestClient]:
    job = Job("test", session=compared)
    with client_of(Viewer(memory=Memory(tmp_path / "viewer.json"), job=job)) as client:
        yield client


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[TestClient]:
    with client_of(Viewer(memory=Memory(tmp_path / "viewer.json"))) as client:
        yield client


def test_the_built_files_are_served(client: TestClient) -> None:
    for name, media in STATIC.items():
        answer = client.get("/" if name == "index.html" else f"/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(media)


def test_rows_come_as_a_frame(client: TestClient) -> None:
    answer = client.get("/api/rows?q=leaky&sort=error_out&descending=1&limit=3&columns=target_name,verdict")
    assert answer.headers["content-type"] == MEDIA_TYPE
    header, columns = decode(answer.content)
    assert header["matched"] > 3
    assert len(columns["row"]) == 3
    assert all("leaky" in name for name in columns["target_name"])


def test_find_and_position_walk_through_the_differences(client: TestClient) -> None:
    first = client.get("/api/find?start=-1&direction=1").json()
    assert first["position"] >= 0
    assert client.get(f"/api/position?row={first['row']}").json()["position"] == first["position"]
    assert client.get("/api/find?start=0&direction=-1").json()["position"] == -1


@pytest.mark.parametrize(
    "path",
    [
        "rows?table=other",
        "rows?sort=colour",
        "rows?step=x",
        "rows?q=(&regex=1",
        "rows?columns=secret",
        "call/999999",
        "tensor/0/none/plane",
        "group?group=../..",
        "rows?offset=x",
        "tensor/0/input.0/histogram?scale=cubic",
    ],
)
def test_a_wrong_question_is_answered_in_one_line(client: TestClient, path: str) -> None:
    answer = client.get(f"/api/{path}")
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]


def test_export_is_the_rows_that_are_shown(client: TestClient) -> None:
    lines = client.get("/api/export?q=leaky_relu.1&columns=step,target_name").text.splitlines()
    assert lines[0] == "step,target_name"
    assert lines[1].startswith("0,")
    assert all("leaky_relu.1" in line for line in lines[1:])


def test_a_tensor_is_told_pictured_and_listed(client: TestClient, compared: Session) -> None:
    base = f"/api/tensor/{compared.summary['origin_row']}/output.0"
    about = client.get(f"{base}/about").json()
    assert about["shape"] == [4, 6]
    assert about["comparable"]
    header, _ = decode(client.get(f"{base}/plane?what=difference&rows=0&columns=1").content)
    assert (header["height"], header["width"]) == (4, 6)
    assert sum(client.get(f"{base}/histogram?scale=log").json()["value"]["target"]) == 24
    values = client.get(f"{base}/values?offset=20&limit=100").json()
    assert values["size"] == 24
    assert [item["flat"] for item in values["elements"]] == [20, 21, 22, 23]
    worst = client.get(f"{base}/values?worst=1").json()["elements"]
    assert abs(worst[0]["difference"]) >= abs(worst[-1]["difference"]) > 0


def test_opening_streams_what_happens_and_remembers(empty: TestClient, folder: Path) -> None:
    assert empty.get("/api/state").json()["state"] == "empty"
    assert empty.get("/api/session").status_code == 400
    body = {"target": str(folder / "target"), "reference": str(folder / "reference")}
    assert empty.post("/api/open", json=body).json()["state"] in ("working", "ready")
    text = empty.get("/api/events").text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]
    assert any("comparing" in event.get("text", "") for event in events)
    assert events[-1] == {"done": True, "error": None}
    assert empty.get("/api/session").json()["report"]["verdict"] == "diverged"
    assert [one["path"] for one in empty.get("/api/start").json()["recent"]] == [body["target"], body["reference"]]


def test_a_run_that_cannot_be_opened_is_said(empty: TestClient, tmp_path: Path) -> None:
    empty.post("/api/open", json={"target": str(tmp_path / "nothing")})
    events = empty.get("/api/events").text
    assert "nothing" in events
    assert empty.get("/api/state").json()["state"] == "failed"


def test_the_forms_compare_two_runs(empty: TestClient, folder: Path) -> None:
    first, second = str(folder / "target"), str(folder / "reference")
    form = {
        "first": first,
        "second": second,
        "folder": "forward",
        "steps": "[0,1)",
        "metric": "RMSE",
        "threshold": "1e-9",
    }
    lines = [json.loads(line) for line in empty.post("/api/forms/directory", json=form).text.splitlines()]
    entries = [line["entry"] for line in lines if "entry" in line]
    assert lines[-1] == {"done": len(entries)}
    assert entries
    assert {entry["step"] for entry in entries} == {0}
    assert all(entry["error"] is None or entry["error"] > 1e-9 for entry in entries)
    assert empty.get("/api/start").json()["forms"]["directory"]["metric"] == "RMSE"
    file = {"first": entries[0]["first_path"], "second": entries[0]["second_path"], "metric": "CS"}
    assert "entry" in empty.post("/api/forms/file", json=file).text
    after = empty.post("/api/forms/neighbour", json={**file, "direction": 1}).json()
    back = empty.post("/api/forms/neighbour", json={**after, "direction": -1}).json()
    assert back == {"first": file["first"], "second": file["second"]}
    wrong = empty.post("/api/forms/directory", json={**form, "metric": "XYZ"}).text
    assert "no metric" in json.loads(wrong.splitlines()[-1])["error"]


def test_other_tools_folders_go_to_their_own_forms(folder: Path) -> None:
    made: list[RunForms] = []

    def others() -> RunForms:
        made.append(RunForms())
        return made[0]

    forms = EitherForms(others)
    assert forms._for(str(folder / "target")) is not forms._for(str(folder))
    assert len(made) == 1


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("", [0, 9], []),
        ("7", [7], [6, 8]),
        ("[0,8)", [0, 7], [8]),
        ("[1,2]", [1, 2], [0, 3]),
        ("（0，2］", [1, 2], [0, 3]),
    ],
)
def test_ranges_are_read_as_hooktools_writes_them(text: str, inside: list[int], outside: list[int]) -> None:
    test = in_range(text)
    assert all(test(number) for number in inside)
    assert not any(test(number) for number in outside)


def test_a_cosine_is_an_error_when_it_is_small() -> None:
    assert above(0.5, "CS", 0.9)
    assert not above(0.99, "CS", 0.9)
    assert above(0.5, "RMSE", 0.1)
    assert above(None, "RMSE", 0.1)


def test_a_damaged_memory_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "viewer.json"
    for content in ("", "[]", "{", '{"runs": [1, "a"], "forms": 3}'):
        file.write_text(content)
        assert Memory(file).read().forms == {}
    Memory(file).add_runs("b", "a")
    assert Memory(file).read().runs == ["b", "a"]


def test_runs_nearby_are_found(folder: Path) -> None:
    assert runs_near(folder) == sorted(str(folder / name) for name in ("large", "reference", "target"))
