"""The viewer's web application: only routes; `Session`, `Job` and `Forms` make the answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path

import numpy as np
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from numscope.core.errors import NumscopeError, SettingsError
from numscope.core.json_value import Json, JsonObject, items, members
from numscope.core.report import plain
from numscope.report.pages import frames, story
from numscope.report.pages.tables import Filter, IndexedTable, RowNumbers
from numscope.view import tensor
from numscope.view.forms import DirectoryForm, Entry, FileForm, Forms, RunForms, conclusion
from numscope.view.jobs import Announce, Choice, Job, open_runs
from numscope.view.recent import Memory, described, runs_near
from numscope.view.security import Access, Guard
from numscope.view.session import Session

STATIC = {"index.html": "text/html", "app.js": "text/javascript", "app.css": "text/css", "worker.js": "text/javascript"}
_MOST_ROWS = 2000  # of one window
_MOST_BYTES = 1_000_000  # of a request


@dataclass
class Viewer:
    """The state of the server: nothing open, a job at work, or the session that it made."""

    memory: Memory = field(default_factory=Memory)
    forms: Forms = field(default_factory=RunForms)
    job: Job | None = None
    opened: Choice | None = None
    shown: Session | None = None  # stays until its successor is ready
    document: JsonObject | None = None  # a command's answer, in place of runs

    @property
    def session(self) -> Session:
        if self.job is not None and self.job.session is not None:
            self.shown = self.job.session
        if self.shown is None:
            raise SettingsError("nothing is open yet")
        return self.shown

    def open(self, choice: Choice) -> Job:
        """Open one run, or compare two, in the background; opening the same again leaves the pages up meanwhile."""
        if self.opened != choice:
            self.shown = None
        self.document = None
        self.opened = choice
        self.memory.add_runs(*(str(Path(path).absolute()) for path in (choice.target, choice.reference) if path))
        title = f"{choice.target} against {choice.reference}" if choice.reference else choice.target
        self.job = Job(title).start(self._remembering(choice))
        return self.job

    def _remembering(self, choice: Choice) -> Callable[[Announce], Session]:
        """Return the work of opening the choice; the answer is remembered for the start page."""
        work = open_runs(choice)

        def remembering(announce: Announce) -> Session:
            session = work(announce)
            report = members(session.summary.get("report"))
            if choice.reference and report:
                target, reference = (str(Path(path).absolute()) for path in (choice.target, choice.reference))
                self.memory.add_verdict(target, reference, str(report["verdict"]))
            return session

        return remembering


def create_app(viewer: Viewer, access: Access) -> Starlette:
    """Return the application; every request passes the guard first."""
    api = Api(viewer)
    routes = [
        Route("/", static("index.html")),
        *(Route(f"/{name}", static(name)) for name in STATIC if name != "index.html"),
        *(Route(f"/api/{path}", answer, methods=["GET"]) for path, answer in api.gets().items()),
        *(Route(f"/api/{path}", answer, methods=["POST"]) for path, answer in api.posts().items()),
    ]
    middleware = [Middleware(Guard, access=access)]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={NumscopeError: _user_error})


def static(name: str) -> Callable[[Request], Response]:
    """Return the route of one file of the built front end; no other file can be asked for."""

    def answer(request: Request) -> Response:
        content = files("numscope.view").joinpath("static", name).read_bytes()
        return Response(content, media_type=STATIC[name])

    return answer


def _user_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


def _json(value: object) -> Response:
    return JSONResponse(plain(value))


def _frame(content: bytes) -> Response:
    return Response(content, media_type=frames.MEDIA_TYPE)


def _int(request: Request, name: str, default: int = 0) -> int:
    text = request.query_params.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise SettingsError(f"{name} is a whole number, not {text!r}") from None


def where(request: Request) -> Filter:
    """Return the filter in a request's query."""
    query = request.query_params

    def words(name: str) -> tuple[str, ...]:
        return tuple(word for word in query.get(name, "").split(",") if word)

    def numbers(name: str) -> tuple[int, ...]:
        try:
            return tuple(int(word) for word in words(name))
        except ValueError:
            raise SettingsError(f"{name} is a list of whole numbers, not {query[name]!r}") from None

    return Filter(
        text=query.get("q", ""),
        regex=query.get("regex") == "1",
        module=query.get("module", ""),
        verdict=words("verdict"),
        phase=words("phase"),
        kind=words("kind"),
        dtype=words("dtype"),
        step=numbers("step"),
        rank=numbers("rank"),
        pair=numbers("pair"),
    )


class Api:
    """The answers, each a method of one request."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer

    def gets(self) -> dict[str, Callable[[Request], Response]]:
        """Return the paths that only read."""
        return {
            "state": self.state,
            "session": lambda r: _json(self.viewer.session.summary),
            "version": lambda r: _json({"version": self.viewer.session.version()}),
            "events": self.events,
            "rows": self.rows,
            "find": self.find,
            "position": self.position,
            "export": self.export,
            "story": self.story,
            "heat": lambda r: _json(self.viewer.session.heat()),
            "call/{row:int}": lambda r: _json(self.viewer.session.call(r.path_params["row"])),
            "path/{row:int}": lambda r: _json(self.viewer.session.path(r.path_params["row"])),
            "group": self.group,
            "tensor/{row:int}/{slot}/about": self.tensor_about,
            "tensor/{row:int}/{slot}/histogram": self.tensor_histogram,
            "tensor/{row:int}/{slot}/plane": self.tensor_plane,
            "tensor/{row:int}/{slot}/values": self.tensor_values,
            "start": self.start,
            "document": self.document,
        }

    def posts(self) -> dict[str, Callable[[Request], Response | Awaitable[Response]]]:
        """Return the paths that change something."""
        return {
            "open": self.open,
            "again": self.again,
            "diagnose": lambda r: _json(self.viewer.session.diagnose()),
            "forms/directory": self.form_directory,
            "forms/file": self.form_file,
            "forms/neighbour": self.form_neighbour,
            "forms/xlsx": self.form_xlsx,
        }

    def state(self, request: Request) -> Response:
        job = self.viewer.job
        state = "empty" if job is None else "ready" if job.session else "failed" if job.error else "working"
        shown = {"title": job.title if job else "", "error": job.error if job else None}
        return _json({"state": state, **shown, "document": self.viewer.document is not None})

    def document(self, request: Request) -> Response:
        if self.viewer.document is None:
            raise SettingsError("no answer is open")
        return _json(self.viewer.document)

    def events(self, request: Request) -> Response:
        job = self.viewer.job
        if job is None:
            raise SettingsError("nothing is being opened")
        lines = (f"data: {json.dumps(event)}\n\n" for event in job.follow())
        return StreamingResponse(lines, media_type="text/event-stream")

    def _view(self, request: Request) -> tuple[IndexedTable, RowNumbers]:
        query = request.query_params
        table = self.viewer.session.table(query.get("table", "calls"))
        return table, table.rows(where(request), query.get("sort", ""), query.get("descending") == "1")

    def rows(self, request: Request) -> Response:
        table, rows = self._view(request)
        start = max(_int(request, "offset"), 0)
        part = rows[start : start + min(_int(request, "limit", 100), _MOST_ROWS)]
        columns = [name for name in request.query_params.get("columns", "").split(",") if name] or table.names
        return _frame(table.window(part, columns, {"total": len(table), "matched": len(rows), "offset": start}))

    def find(self, request: Request) -> Response:
        table, rows = self._view(request)
        step = 1 if _int(request, "direction", 1) > 0 else -1
        start = _int(request, "start", -1)
        at = table.find(rows, start, step, ("origin", "inherited", "unmatched"))
        if at < 0 and not set(table.facet("verdict")) & {"origin", "inherited", "unmatched"}:
            at = table.find(rows, start, step, ("equivalent",))
        return _json({"position": at, "row": int(rows[at]) if at >= 0 else None})

    def position(self, request: Request) -> Response:
        _, rows = self._view(request)
        hits = np.flatnonzero(rows == _int(request, "row", -1))
        return _json({"position": int(hits[0]) if len(hits) else -1})

    def export(self, request: Request) -> Response:
        table, rows = self._view(request)
        columns = [name for name in request.query_params.get("columns", "").split(",") if name] or table.names
        for name in columns:
            table.column(name)
        headers = {"Content-Disposition": 'attachment; filename="numscope.csv"'}
        return StreamingResponse(table.csv(rows, columns), media_type="text/csv; charset=utf-8", headers=headers)

    def story(self, request: Request) -> Response:
        session = self.viewer.session
        limit = min(max(_int(request, "limit", story.LIMIT), 100), story.LIMIT)
        start, end = _int(request, "start"), _int(request, "end")
        return _frame(story.frame(session.calls, session.measure, where(request), start, end, limit))

    def group(self, request: Request) -> Response:
        query = request.query_params
        step, rank = _int(request, "step"), _int(request, "rank")
        return _json(self.viewer.session.group(step, rank, query.get("group", "root"), query.get("phase", "forward")))

    def _pair(self, request: Request) -> tuple[tensor.TensorPair, dict[str, str]]:
        return self.viewer.session.data(request.path_params["row"], request.path_params["slot"])

    def tensor_about(self, request: Request) -> Response:
        pair, missing = self._pair(request)
        return _json({"shape": list(pair.shape), "comparable": pair.comparable, "missing": missing, **pair.kept()})

    def tensor_histogram(self, request: Request) -> Response:
        return _json(tensor.histogram(self._pair(request)[0], request.query_params.get("scale", "linear")))

    def tensor_plane(self, request: Request) -> Response:
        fixed = [int(word) for word in request.query_params.get("fixed", "").split(",") if word.isdecimal()]
        what = request.query_params.get("what", "difference")
        pair = self._pair(request)[0]
        return _frame(tensor.plane(pair, what, _int(request, "rows"), _int(request, "columns", 1), fixed))

    def tensor_values(self, request: Request) -> Response:
        pair = self._pair(request)[0]
        size = int(np.prod(pair.shape)) if pair.target is not None or pair.reference is not None else 0
        if request.query_params.get("worst") == "1":
            return _json({"size": size, "elements": tensor.worst(pair, min(_int(request, "limit", 50), 500))})
        start = min(max(_int(request, "offset"), 0), size)
        flat = np.arange(start, min(start + min(_int(request, "limit", 100), _MOST_ROWS), size))
        return _json({"size": size, "elements": tensor.elements(pair, flat)})

    def start(self, request: Request) -> Response:
        memory = self.viewer.memory.read()
        recent = described(memory.runs, memory.verdicts)
        near = described(runs_near(Path.cwd()), memory.verdicts)
        return _json({"recent": recent, "near": near, "forms": memory.forms, "here": str(Path.cwd())})

    async def open(self, request: Request) -> Response:
        body = await _body(request)
        target, reference = str(body.get("target") or ""), str(body.get("reference") or "") or None
        if not target:
            raise SettingsError("name a run to look at")
        options = members(body.get("options"))
        noise = tuple(str(path) for path in items(options.get("noise")))
        self.viewer.open(Choice(target, reference, noise, str(options.get("map") or "") or None))
        return self.state(request)

    async def again(self, request: Request) -> Response:
        if self.viewer.opened is None:
            raise SettingsError("nothing is open yet")
        if self.viewer.job is not None and self.viewer.job.session is not None:
            self.viewer.shown = self.viewer.job.session
        self.viewer.open(self.viewer.opened)
        return self.state(request)

    async def form_directory(self, request: Request) -> Response:
        body = await _body(request)
        fields = _fields(body, "first", "second", "folder", "epochs", "steps", "metric")
        form = DirectoryForm(**fields, threshold=_threshold(body))
        self.viewer.memory.keep_form("directory", body)
        return _lines(lambda: self.viewer.forms.directory(form))

    async def form_file(self, request: Request) -> Response:
        body = await _body(request)
        form = FileForm(**_fields(body, "first", "second", "metric"), threshold=_threshold(body))
        self.viewer.memory.keep_form("file", body)
        return _lines(lambda: self.viewer.forms.file(form))

    async def form_neighbour(self, request: Request) -> Response:
        body = await _body(request)
        fields = _fields(body, "first", "second")
        direction = 1 if body.get("direction") == 1 else -1
        first, second = self.viewer.forms.neighbour(fields["first"], fields["second"], direction)
        return _json({"first": first, "second": second})

    async def form_xlsx(self, request: Request) -> Response:
        entries = (await _body(request)).get("entries")
        if not isinstance(entries, list):
            raise SettingsError("there is nothing to write")
        media = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
        return Response(conclusion([entry for entry in entries if isinstance(entry, dict)]), media_type=media)


async def _body(request: Request) -> dict[str, Json]:
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > _MOST_BYTES:  # before more of it is taken
            raise SettingsError("the request is too large")
    try:
        body = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise SettingsError("the request is not a JSON object")
    return body


def _fields(body: dict[str, Json], *names: str) -> dict[str, str]:
    return {name: str(body[name]) for name in names if body.get(name) not in (None, "")}


def _threshold(body: dict[str, Json]) -> float | None:
    threshold = body.get("threshold")
    if threshold in (None, ""):
        return None
    try:
        return float(str(threshold))
    except ValueError:
        raise SettingsError(f"the threshold is a number, not {threshold!r}") from None


def _lines(entries: Callable[[], Iterator[Entry]]) -> Response:
    """Stream entries as lines of JSON; an error is the last line."""

    def lines() -> Iterator[str]:
        count = 0
        try:
            for entry in entries():
                count += 1
                yield json.dumps({"entry": plain(asdict(entry))}) + "\n"
            yield json.dumps({"done": count}) + "\n"
        except (NumscopeError, TypeError) as error:
            yield json.dumps({"error": str(error)}) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")
