"""Comparing in the background while the page shows how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numscope.core.errors import NumscopeError
from numscope.view.session import Session

Tell = Callable[[str], None]


@dataclass
class Job:
    """One opening of one or two runs: a list of events that grows, then a session or an error."""

    title: str
    events: list[dict[str, Any]] = field(default_factory=list)
    session: Session | None = None
    error: str | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _began: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> bool:
        return self.session is not None or self.error is not None

    def tell(self, text: str) -> None:
        """Add a line for the page."""
        with self._changed:
            self.events.append({"seconds": round(time.monotonic() - self._began, 2), "text": text})
            self._changed.notify_all()

    def run(self, work: Callable[[Tell], Session]) -> None:
        """Do the work; a mistake of the user's becomes one line on the page."""
        try:
            session = work(self.tell)
            session.summary  # noqa: B018 - made here, so that the first page comes at once
        except NumscopeError as error:
            self._end(error=str(error))
        except Exception as error:  # a fault of ours ends this job, not the server
            self._end(error=f"{type(error).__name__}: {error}")
        else:
            self._end(session=session)
            session.warm()

    def _end(self, session: Session | None = None, error: str | None = None) -> None:
        with self._changed:
            self.session, self.error = session, error
            self._changed.notify_all()

    def start(self, work: Callable[[Tell], Session]) -> Job:
        """Do the work in a thread."""
        threading.Thread(target=self.run, args=(work,), daemon=True, name="numscope-view-job").start()
        return self

    def follow(self, wait: float = 1.0) -> Iterator[dict[str, Any]]:
        """Yield the events so far and each new one; a beat with the seconds gone where there is none."""
        sent = 0
        while True:
            with self._changed:
                if sent == len(self.events) and not self.done:
                    self._changed.wait(wait)
                fresh, done = self.events[sent:], self.done
            sent += len(fresh)
            yield from fresh
            if done:
                yield {"done": True, "error": self.error}
                return
            if not fresh:
                yield {"seconds": round(time.monotonic() - self._began, 1)}


def open_runs(target: str, reference: str | None, options: dict[str, Any]) -> Callable[[Tell], Session]:
    """Return the work of opening one run, or of comparing two."""

    def work(tell: Tell) -> Session:
        from numscope.store.reader import open_run

        tell(f"opening {target}")
        run = open_run(target)
        if not reference:
            tell(f"reading {len(run.steps)} steps of {len(run.ranks)} ranks")
            return Session.of_run(run)
        tell(f"opening {reference}")
        open_run(reference)
        from numscope.compare.comparison import compare

        tell("comparing")
        given = {name: value for name, value in options.items() if value}
        comparison = compare(target, reference, progress=_steps(tell), **given)
        tell(f"{comparison.calls.num_rows:,} calls, {comparison.pairs.num_rows:,} tensors compared")
        return Session.of_comparison(comparison)

    return work


def _steps(tell: Tell) -> Callable[[int, int], None]:
    """Return a report of progress that says a line for each tenth of the work."""
    said = -1

    def progress(done: int, total: int) -> None:
        nonlocal said
        tenth = 10 * done // max(total, 1)
        if tenth > said:
            said = tenth
            tell(f"compared {done:,} of {total:,} steps of ranks")

    return progress
