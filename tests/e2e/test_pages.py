"""Each page of the viewer on a real comparison, and each gesture on it."""

from __future__ import annotations

import re
from typing import Any

from tests.e2e.browser import PATIENCE, drawn, point_on, until

ORIGIN = "Functional.gelu.1.forward"
OUTSIDE = """width => [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > width)
    .map(e => e.tagName + '.' + e.className).slice(-3).join(' ')"""


def lines(page: Any) -> list[str]:
    page.wait_for_selector(".line .badge")
    return [text.replace("\n", " ") for text in page.locator(".line").all_inner_texts()]


def first_lines_have(page: Any, text: str, among: int = 1) -> None:
    """Wait until one of the first rows that are drawn, with their contents, holds a text."""
    until(
        page,
        """([text, among]) => [...document.querySelectorAll('.line')].slice(0, among)
            .some(line => line.querySelector('.badge') && line.innerText.includes(text))""",
        [text, among],
    )


def counted(page: Any, selector: str, expected: str) -> None:
    """Wait until so many elements are there: `counted(page, ".node", "> 8")`."""
    until(page, f"selector => document.querySelectorAll(selector).length {expected}", selector)


def settled(page: Any, count: str) -> None:
    until(page, "text => document.querySelector('[data-testid=count]').textContent === text", count)


def test_the_answer_says_verdict_origin_reason_and_source(go: Any, compared: str) -> None:
    page = go(compared, "")
    page.wait_for_selector("[data-testid=origin]")
    assert page.url.endswith("/#/")  # the token has left the address
    assert "diverge" in page.inner_text("[data-testid=verdict] h1")
    origin = page.inner_text("[data-testid=origin]")
    assert ORIGIN in origin
    assert "approximate 'tanh' against 'none'" in origin
    assert "F.gelu(self.up(x), approximate=self.approximate)" in page.inner_text(".frame.user")
    assert "inherited" in page.inner_text("[data-testid=counts]")
    assert "matched" in page.inner_text("[data-testid=coverage]")
    page.click("text=Look at its tensors")
    page.wait_for_selector("[data-testid=statistics]")


def test_the_origin_is_diagnosed_on_demand(go: Any, compared: str) -> None:
    page = go(compared, "answer")
    page.wait_for_selector("[data-testid=origin]")
    if page.locator("text=Diagnose").count():
        page.click("text=Diagnose")
    page.wait_for_selector(".repair")
    assert "approximate='none'" in page.inner_text(".repair")
    assert "float64" in page.inner_text("[data-testid=origin]")


def test_the_story_zooms_hovers_and_opens_a_call(go: Any, compared: str) -> None:
    page = go(compared, "story?step=0&rank=0")
    page.wait_for_selector("[data-testid=plot] canvas")
    until(page, "document.querySelector('[data-testid=plot]').dataset.points === '189'")
    drawn(page)
    box = page.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 90, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"zoom=\d+-\d+"))
    page.mouse.dblclick(box["x"] + 20, box["y"] + 20)
    page.wait_for_url(re.compile(r"^(?!.*zoom)"))
    page.mouse.wheel(0, -200)
    page.wait_for_url(re.compile(r"zoom="))
    page.click("text=Whole run")
    page.wait_for_url(re.compile(r"^(?!.*zoom)"))
    drawn(page)
    height = box["y"] + box["height"] - 92  # somewhere along the line of zeros lies a point
    found = point_on(page, ((box["x"] + x, height) for x in range(0, int(box["width"]), 6)))
    assert "in" in page.inner_text("[data-testid=tip]")
    page.mouse.click(*found)
    page.wait_for_url(re.compile(r"#/tensor/\d+"))


def test_a_rank_and_step_is_chosen_from_the_heatmap(go: Any, compared: str) -> None:
    page = go(compared, "story")
    page.wait_for_selector("[data-testid=heat] button")
    page.locator("[data-testid=heat] button").nth(1).click()
    page.wait_for_url(re.compile(r"step=1&rank=0"))
    until(page, "document.querySelector('[data-testid=plot]').dataset.points === '189'")
    page.click("text=show all")
    until(page, "document.querySelector('[data-testid=plot]').dataset.points === '378'")
    page.get_by_label("error in").check()
    page.get_by_label("what rounding explains").uncheck()


def origins(comparison: Any) -> int:
    """Return how many calls are origins: how many there are is the judge's business, not the viewer's."""
    return comparison.calls["verdict"].to_pylist().count("origin")


def test_calls_are_searched_filtered_and_sorted(go: Any, compared: str, comparison: Any) -> None:
    page = go(compared, "calls")
    assert len(lines(page)) > 15
    settled(page, "378 of 378")
    page.keyboard.press("/")
    page.keyboard.type("gelu")
    page.wait_for_url(re.compile("q=gelu"))
    settled(page, "12 of 378")
    page.keyboard.press("Escape")
    page.get_by_label("Name").fill(r"gelu\.[01]\.forward$")
    page.click(".search button")
    settled(page, "4 of 378")
    page.click(".chip.v-origin")
    settled(page, f"{origins(comparison)} of 378")
    first_lines_have(page, ORIGIN)
    page.click("text=Clear filters")
    settled(page, "378 of 378")
    page.locator("input[list=modules]").fill("blocks.1.mlp")
    page.locator("input[list=modules]").press("Enter")
    page.locator("select[aria-label=phase]").select_option("forward")
    page.locator("select[aria-label=step]").select_option("0")
    page.wait_for_url(re.compile(r"module=blocks\.1\.mlp&phase=forward&step=0"))
    until(page, "+document.querySelector('.grid').dataset.rows < 12")
    page.click(".head >> text=error out")
    page.wait_for_url(re.compile("sort=error_out&descending=1"))
    first_lines_have(page, "gelu.1", among=3)
    page.get_by_label("Name").fill("(")
    page.click(".search button")
    page.wait_for_selector("text=not a regular expression")


def test_the_keyboard_moves_through_rows_and_differences(go: Any, compared: str) -> None:
    page = go(compared, "calls?step=0")
    lines(page)

    def on() -> Any:  # the row that is chosen, once it is drawn with its contents
        page.wait_for_selector(".line.on .badge")
        return page.locator(".line.on")

    def at(row: str) -> str:
        return f"document.querySelector('.line.on')?.getAttribute('aria-rowindex') === '{row}'"

    for _ in range(3):
        page.keyboard.press("j")
    page.keyboard.press("k")
    until(page, at("3"))
    places = ["3"]
    for _ in range(3):
        page.keyboard.press("n")
        until(page, f"document.querySelector('.line.on') && !({at(places[-1])})")
        assert on().locator(".badge").inner_text().split()[-1] in ("inherited", "origin", "unmatched")
        places.append(on().get_attribute("aria-rowindex"))
    page.keyboard.press("p")
    until(page, at(places[2]))
    for key in "pnn":  # each press counts, however fast they come
        page.keyboard.press(key)
    until(page, at(places[3]))

    page.evaluate("location.hash = '#/calls?step=0&verdict=origin'")  # other rows: nothing is chosen any more
    until(page, "!document.querySelector('.line.on') && +document.querySelector('.grid').dataset.rows < 5")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    until(page, "location.hash.startsWith('#/tensor/')")
    page.go_back()
    page.wait_for_selector(".grid")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('dialog[open]')")
    page.keyboard.press("2")
    until(page, "location.hash.startsWith('#/story')")
    page.keyboard.press("o")
    page.wait_for_selector(f"h1:has-text('{ORIGIN}')")


def test_columns_are_chosen_and_rows_exported(go: Any, compared: str, comparison: Any) -> None:
    page = go(compared, "calls?verdict=origin")
    lines(page)
    page.click("text=Columns")
    page.get_by_label("source file").check()
    page.wait_for_selector(".head >> text=source file")
    page.click("text=Columns")
    with page.expect_download() as download:
        page.click("text=Export")
    text = download.value.path().read_text()
    assert text.splitlines()[0].startswith("verdict,target_name")
    assert text.splitlines()[0].endswith("source_file")
    assert len(text.splitlines()) == 1 + origins(comparison)
    page.click("text=Tensors")
    page.wait_for_url(re.compile("table=pairs"))
    page.wait_for_selector(".head >> text=cosine")
    first_lines_have(page, "gelu.1.forward.output.0")
    page.locator(".line").first.dblclick()
    page.wait_for_url(re.compile(r"#/tensor/\d+/"))


def test_the_model_opens_at_the_origin_mirrored_with_what_one_side_lacks(go: Any, compared: str) -> None:
    page = go(compared, "model")
    page.wait_for_selector("[data-testid=pane-target] .node.on")
    assert "gelu.1" in page.text_content("[data-testid=pane-target] .node.on")
    counted(page, "[data-testid=pane-reference] .node.ghost", "=== 1")
    counted(page, "[data-testid=pane-target] .edge", "> 8")
    assert page.locator("[data-testid=pane-target] .node.ghost").count() == 0

    def camera(side: str) -> str:
        return page.locator(f"[data-testid=pane-{side}] svg > g").get_attribute("transform")

    changed = "old => document.querySelector('.pane svg > g').getAttribute('transform') !== old"
    mirrored = "() => new Set([...document.querySelectorAll('.pane svg > g')].map(g => g.getAttribute('transform'))).size === 1"
    before = camera("target")
    box = page.locator("[data-testid=pane-target]").bounding_box()
    page.mouse.move(box["x"] + 15, box["y"] + box["height"] - 15)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + box["height"] - 60, steps=3)
    page.mouse.up()
    until(page, changed, before)
    until(page, mirrored)
    moved = camera("target")
    page.mouse.wheel(0, 240)
    until(page, changed, moved)
    until(page, mirrored)

    page.click("text=Collapse all")
    until(page, "document.querySelectorAll('[data-testid=pane-target] .node').length < 12")
    few = page.locator("[data-testid=pane-target] .node").count()
    page.click("text=Fit")
    page.locator("[data-testid=pane-reference] .node[aria-expanded=false]").first.click()
    until(page, f"document.querySelectorAll('[data-testid=pane-target] .node').length > {few}")
    page.click("text=Go to the origin")
    page.locator("[data-testid=pane-reference] .node.on").click()
    page.wait_for_selector(f"h1:has-text('{ORIGIN}')")


def test_the_backward_part_of_the_model_is_shown_too(go: Any, compared: str) -> None:
    page = go(compared, "model")
    page.wait_for_selector(".node")
    page.click(".segments >> text=backward")
    page.wait_for_url(re.compile("phase=backward"))
    page.wait_for_selector("[data-testid=pane-target] .node")
    page.get_by_label("step").select_option("1")
    page.wait_for_url(re.compile("step=1"))


def test_a_tensor_shows_statistics_pictures_elements_and_stack(go: Any, compared: str) -> None:
    page = go(compared, "")
    page.wait_for_selector("[data-testid=origin]")
    page.keyboard.press("o")
    page.wait_for_selector("[data-testid=values] td")
    page.wait_for_selector("[data-testid=statistics] >> text=float32")
    page.wait_for_selector("[data-testid=errors] >> text=ULP, largest")
    page.wait_for_selector("[data-testid=errors] >> text=bias")
    page.wait_for_selector("[data-testid=arguments] >> text=tanh")
    page.wait_for_selector("[data-testid=stack] .frame.user >> text=approximate=self.approximate")
    counted(page, "[data-testid=worst] tbody tr", "=== 30")
    counted(page, "[data-testid=histogram] svg", "=== 2")
    page.click("[data-testid=histogram] >> text=log >> nth=0")
    page.get_by_label("log counts").check()
    page.wait_for_selector("text=size of the values, by powers of ten")
    for what in ("relative", "ULP", "target", "difference"):
        page.click(f".heatmap .segments >> text={what}")
    painted = "() => { const c = document.querySelector('[data-testid=heatmap]'); return c.width + 'x' + c.height; }"
    until(page, f"({painted})() === '128x12'")
    page.get_by_label("down").select_option("0")
    until(page, f"({painted})() === '128x2'")
    page.locator("#dim1").fill("5")
    page.wait_for_selector("text=5 / 12")
    page.click("[data-testid=values] >> text=→")
    page.wait_for_selector("text=100 to 200 of 3,072")
    page.locator(".slots >> text=input.0").click()
    page.wait_for_url(re.compile("/input.0"))
    page.wait_for_selector("[data-testid=errors] >> text=yes")
    page.click("text=Next →")
    page.wait_for_selector("h1:has-text('Module.blocks.1.mlp.down')")
    page.click("text=← Previous")
    page.wait_for_selector(f"h1:has-text('{ORIGIN}')")


def test_one_run_shows_where_it_stopped_being_finite(go: Any, alone: str) -> None:
    page = go(alone, "")
    page.wait_for_selector("[data-testid=chain]")
    assert "not finite" in page.inner_text("[data-testid=verdict] h1")
    assert "Torch.exp.0.forward" in page.inner_text("[data-testid=origin]")
    counted(page, "[data-testid=chain] .row", "> 1")
    page.click("text=Calls with the least headroom")
    page.wait_for_url(re.compile("sort=headroom"))
    page.wait_for_selector(".line")
    page.keyboard.press("2")
    page.wait_for_selector("[data-testid=plot] canvas")
    page.keyboard.press("4")
    page.wait_for_selector("[data-testid=pane-target] .node.on")
    assert page.locator(".pane").count() == 1
    page.keyboard.press("o")
    page.wait_for_selector("[data-testid=not-kept]")
    assert "--tensors" in page.inner_text("[data-testid=not-kept]")


def test_theme_and_language_follow_the_browser_and_can_be_changed(browser: Any, compared: str) -> None:
    context = browser.new_context(locale="zh-CN", color_scheme="dark")
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    page.goto(compared)
    page.wait_for_selector("[data-testid=verdict]")
    assert "两次运行出现分歧" in page.inner_text("[data-testid=verdict] h1")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("document.documentElement.lang") == "zh"
    page.keyboard.press("t")
    until(page, "document.documentElement.dataset.theme === 'light'")
    page.click("button:has-text('en')")
    page.reload()
    page.wait_for_selector("text=The two runs diverge.")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    context.close()


WHOLE = {  # a page, and what is on it when all of it is there
    "": "[data-testid=origin]",
    "story": "[data-testid=plot] canvas",
    "calls": ".line .badge",
    "model": "[data-testid=pane-target] .node",
    "tensor/57/output.0": "[data-testid=values] td",
    "start": "[data-testid=recent]",
    "directory": "form",
    "file": "form",
}


def test_no_page_scrolls_sideways_on_a_phone_or_a_small_screen(browser: Any, compared: str) -> None:
    for width, height in ((375, 720), (1280, 720)):
        context = browser.new_context(viewport={"width": width, "height": height})
        context.set_default_timeout(1000 * PATIENCE)
        page = context.new_page()
        for where, whole in WHOLE.items():
            page.goto(f"{compared}#/{where}")
            page.wait_for_selector(f"main {whole}")
            drawn(page)
            wide = page.evaluate("document.documentElement.scrollWidth")
            outside = page.evaluate(OUTSIDE, width) if wide > width else ""
            assert wide <= width, f"{where or 'answer'} is {wide} wide in a window of {width}: {outside}"
        context.close()


def test_the_errors_are_seen_without_scrolling_in_a_narrow_window(go: Any, page: Any, compared: str) -> None:
    page.set_viewport_size({"width": 800, "height": 700})
    for where, headings in (
        ("calls", ("error in", "error out")),
        ("calls?table=pairs", ("relative L2", "max abs error")),
    ):
        go(compared, where)
        lines(page)
        for heading in headings:
            box = page.locator(f'.head button[title="{heading}"]').bounding_box()
            assert box["x"] + box["width"] <= 800, heading


def test_the_way_back_from_a_tensor_leads_to_its_row(go: Any, compared: str) -> None:
    page = go(compared, "calls?table=pairs&sort=relative_l2&descending=1")
    lines(page)
    page.evaluate("() => { document.querySelector('.grid').scrollTop = 28 * 120 }")
    until(
        page,
        "() => [...document.querySelectorAll('.line')].some(line => line.ariaRowIndex === '130' && line.innerText)",
    )
    row = page.locator('.line[aria-rowindex="130"]')
    name = row.inner_text()
    row.click()
    row.click()
    page.wait_for_selector("[data-testid=statistics]")
    page.go_back()
    page.wait_for_selector(".line.on .badge")
    assert page.inner_text(".line.on") == name


def test_a_call_that_one_run_alone_has_shows_its_own_tensors(go: Any, compared: str, comparison: Any) -> None:
    row = comparison.calls["target_name"].to_pylist().index("Torch.clamp.0.forward")
    page = go(compared, f"tensor/{row}")
    page.wait_for_selector("[data-testid=lone]")
    assert "Only the target has this call" in page.inner_text("[data-testid=lone]")
    statistics = page.inner_text("[data-testid=statistics]")
    assert "float32" in statistics
    assert "Reference" not in statistics
    page.wait_for_selector("[data-testid=values] td")  # the data of the one side
    assert page.locator("[data-testid=not-kept]").count() == 0


def test_in_the_story_nothing_inherited_stands_left_of_its_origin(go: Any, compared: str, comparison: Any) -> None:
    from numscope.report.pages.story import in_order_of_ending
    from numscope.report.pages.tables import Filter, IndexedTable

    table = IndexedTable(comparison.calls)
    order = in_order_of_ending(table, table.rows(Filter(step=(0,))))
    verdicts = [comparison.calls["verdict"][int(row)].as_py() for row in order]
    assert "inherited" not in verdicts[: verdicts.index("origin")]
    assert sorted(order) == table.rows(Filter(step=(0,))).tolist()


def test_calls_open_at_the_origin(go: Any, compared: str) -> None:
    page = go(compared, "calls")
    page.wait_for_selector(".line.on")
    assert ORIGIN in page.inner_text(".line.on")


def test_a_column_is_as_wide_as_it_is_dragged(go: Any, compared: str) -> None:
    page = go(compared, "calls")
    grip = page.get_by_test_id("grip-module")
    before = page.locator(".head button", has=grip).bounding_box()
    box = grip.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 103, box["y"] + 5, steps=4)
    page.mouse.up()
    after = page.locator(".head button", has=grip).bounding_box()
    assert abs(after["width"] - before["width"] - 100) < 3
    grip.dblclick()
    assert abs(page.locator(".head button", has=grip).bounding_box()["width"] - before["width"]) < 3


def test_the_model_is_searched_by_name(go: Any, compared: str) -> None:
    page = go(compared, "model")
    page.wait_for_selector(".node.on")
    page.get_by_test_id("model-search").fill("layer_norm")
    page.get_by_test_id("model-search").press("Enter")
    until(page, "/^1 of/.test(document.querySelector('[data-testid=found]').textContent)")
    until(page, "document.querySelector('.node.on')?.textContent.includes('layer_norm')")
    page.get_by_test_id("model-search").press("Enter")
    until(page, "/^2 of/.test(document.querySelector('[data-testid=found]').textContent)")
    page.get_by_test_id("model-search").fill("nothing like it")
    page.get_by_test_id("model-search").press("Enter")
    until(page, "document.querySelector('[data-testid=found]').textContent.includes('no call')")


def test_the_losses_of_both_runs_are_drawn(go: Any, compared: str) -> None:
    page = go(compared, "answer")
    page.wait_for_selector("[data-testid=losses] path.target")
    assert "step 0: the origin" in page.inner_text("[data-testid=losses]")
