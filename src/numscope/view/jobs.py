"""Opens and compares runs in the background, while the page shows the progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from numscope.core.errors import NumscopeError
from numscope.view.session import Session

Announce = Callable[[str], None]  # adds a line of progress to the page


class Choice(NamedTuple):
    """The runs that a user chose to look at."""

    target: str
    reference: str | None = None
    noise: tuple[str, ...] = ()
    map: str | None = None
    steps: tuple[int, ...] | None = None  # None: all
    ranks: tuple[int, ...] | None = None


@dataclass
class Job:
    """The opening of one or two runs: a list of events that grows, then a session or an error."""

    title: str
    events: list[dict[str, object]] = field(default_factory=list)
    session: Session | None = None
    error: str | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _began: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> bool:
        return self.session is not None or self.error is not None

    def announce(self, text: str) -> None:
        """Add a line for the page."""
        with self._changed:
            self.events.append({"seconds": round(time.monotonic() - self._began, 2), "text": text})
            self._changed.notify_all()

    def run(self, work: Callable[[Announce], Session]) -> None:
        """Do the work; an error of the user's becomes one line on the page."""
        try:
            session = work(self.announce)
            session.summary  # noqa: B018 - computed here, so that the first page appears at once
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

    def start(self, work: Callable[[Announce], Session]) -> Job:
        """Do the work in a thread."""
        threading.Thread(target=self.run, args=(work,), daemon=True, name="numscope-view-job").start()
        return self

    def follow(self, wait: float = 1.0) -> Iterator[dict[str, object]]:
        """Yield the events so far and each new one; without a new one, the seconds that have passed."""
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


def open_runs(choice: Choice) -> Callable[[Announce], Session]:
    """Return the work of opening one run, or of comparing two."""

    def work(announce: Announce) -> Session:
        from numscope.store.reader import open_run

        announce(f"opening {choice.target}")
        run = open_run(choice.target)
        if not choice.reference:
            announce(f"reading {len(run.steps)} steps of {len(run.ranks)} ranks")
            return Session.of_run(run)
        announce(f"opening {choice.reference}")
        open_run(choice.reference)
        from numscope.compare.comparison import compare

        announce("comparing")
        progress = _by_tenths(announce)
        comparison = compare(
            choice.target,
            choice.reference,
            noise=choice.noise,
            map=choice.map or None,
            steps=choice.steps,
            ranks=choice.ranks,
            progress=progress,
        )
        announce(f"{comparison.calls.num_rows:,} calls, {comparison.pairs.num_rows:,} tensors compared")
        return Session.of_comparison(comparison)

    return work


def _by_tenths(announce: Announce) -> Callable[[int, int], None]:
    """Return a progress function that announces each tenth of the work."""
    announced = -1

    def progress(done: int, total: int) -> None:
        nonlocal announced
        tenth = 10 * done // max(total, 1)
        if tenth > announced:
            announced = tenth
            announce(f"compared {done:,} of {total:,} steps of ranks")

    return progress
