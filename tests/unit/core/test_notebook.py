"""A notebook's answer is complete in itself, and nothing in a run can become markup."""

from __future__ import annotations

from html.parser import HTMLParser

from numscope.core.notebook import facts_html, report_html
from numscope.core.report import Origin, Report, Source

NASTY = '<img src=x onerror="alert(1)">&'


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.text = ""
        self.depth = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.depth += 1
        assert {name for name, _ in attrs} <= {"style"}

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_report_says_verdict_origin_source_and_counts() -> None:
    source = Source("model.py", 41, "forward", "return F.gelu(x)")
    origin = Origin("Functional.gelu.3.forward", "api", "forward", 0, 1, "it differs", source=source, repair="eps=1e-6")
    report = Report("diverged", origin, (origin,), counts={"identical": 1234, "origin": 1})
    tags = Tags(report_html(report, "runs/npu", "runs/gpu"))
    assert tags.depth == 0
    for part in ("diverged", "runs/npu", origin.call, "rank 1", "model.py:41", "F.gelu(x)", "1,234", "eps=1e-6"):
        assert part in tags.text


def test_names_cannot_become_markup() -> None:
    origin = Origin(NASTY, "api", "forward", 0, 0, NASTY, source=Source(NASTY, 1, "", NASTY))
    report = Report("diverged", origin, reason=NASTY)
    for text in (report_html(report, NASTY, NASTY), facts_html(NASTY, [(NASTY, NASTY)])):
        tags = Tags(text)
        assert "img" not in tags.names
        assert NASTY in tags.text


def test_a_report_without_an_origin_says_its_reason() -> None:
    assert "nothing in common" in report_html(Report("incomparable", reason="nothing in common"))


def test_facts_that_are_not_known_are_left_out() -> None:
    assert "devices" not in facts_html("run a", [("steps", "0"), ("devices", [])])


def test_a_report_says_losses_mechanism_and_cause_and_stays_one_screen() -> None:
    losses = [{"step": step, "target": 3.25 - step, "reference": 3.5 - step} for step in range(100)]
    chain = tuple(f"link {number}" for number in range(20))
    origin = Origin(
        "Functional.gelu.3.forward", "api", "forward", 0, 0, "it differs", mechanism="semantic", chain=chain
    )
    tags = Tags(report_html(Report("diverged", origin, (origin,), details={"losses": losses}), "runs/npu", "runs/gpu"))
    for part in ("semantic", "link 0", "3.25 … -95.75", "3.5 … -95.5"):
        assert part in tags.text
    assert tags.names.count("div") <= 20
