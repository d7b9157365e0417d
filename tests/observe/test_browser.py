"""The page in a real browser: it follows a live run, finds samples, shows conversations, zooms, compares runs, and
what models wrote is text there."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from freerun.observe.folder import JsonLines, RunFolder
from freerun.observe.records import CallRecord, NoteRecord, TurnRecord
from freerun.observe.report import write_report
from tests.cli.test_stopping import start
from tests.observe.runs import a_sample, a_step, keep_samples
from tests.observe.test_report import HOSTILE
from tests.observe.test_watch import write_run
from tests.observe.watching import watching

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("needs Chromium: apt-get install chromium", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which no script may fail."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(15_000)
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("dialog", lambda dialog: failures.append(dialog.message))
    yield page
    page.close()
    assert failures == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root, "first", steps=300)
    write_run(root, "second", steps=40, lr=3e-5)
    hostile = RunFolder.create(root, "hostile")
    with JsonLines(hostile.metrics) as lines:
        lines.append(a_step(1, dropped={HOSTILE: 1}, trainer={HOSTILE: 1.0}))
        lines.append(a_step(2, dropped={HOSTILE: 2}, trainer={HOSTILE: 2.0}))
    with JsonLines(hostile.notes) as lines:
        lines.append(NoteRecord(1, 1.0, HOSTILE))
    hostile.config.write_text(HOSTILE)
    called = TurnRecord(
        "assistant", HOSTILE, HOSTILE, [CallRecord(HOSTILE, HOSTILE, "i")], None, True, 0.5, 0, 2, [(0, 2)]
    )
    turns = [TurnRecord("user", HOSTILE), called, TurnRecord("tool", "the tool's own words", result_of="i")]
    changes = {"prompt": HOSTILE, "answer": HOSTILE, "task": HOSTILE}
    keep_samples(
        hostile.samples,
        a_sample(1, text=HOSTILE, tokens=[HOSTILE, "b"], **changes),
        a_sample(2, text=HOSTILE, tokens=[HOSTILE, "b"], turns=turns, member=3, branch=1, branches=2, **changes),
    )
    return root


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with watching(runs) as address:
        yield address


def test_the_page_follows_a_live_run(page: Page, tmp_path: Path) -> None:
    run = start(tmp_path)
    try:
        with watching(tmp_path / "runs") as address:
            page.goto(address)
            page.get_by_role("link", name="test", exact=True).click()
            expect(page.locator(".pill.running")).to_be_visible()
            expect(page.locator(".now")).to_contain_text("trainer")
            steps = page.locator(".tile", has_text="Training steps").locator("dd")
            first = int(steps.inner_text())
            expect(steps).not_to_have_text(str(first))
            assert int(steps.inner_text()) > first
            run.kill()
            run.communicate()
    finally:
        run.kill()


def test_a_sample_is_found_by_its_text_and_read_token_by_token(page: Page, address: str) -> None:
    page.goto(f"{address}#/run/first")
    page.locator("#samples").scroll_into_view_if_needed()
    expect(page.locator(".count")).to_have_text("300 samples")
    page.keyboard.press("/")
    page.keyboard.type("of step 123")
    expect(page.locator(".count")).to_have_text("1 sample found")
    expect(page.locator(".list mark")).to_have_text("of step 123")
    expect(page.locator(".detail .facts")).to_contain_text("step 123")
    page.locator(".detail .prose span").last.hover()
    expect(page.locator("#tip")).to_contain_text("log-probability")
    expect(page.locator("#tip")).to_contain_text("v122")
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Reward from").fill("1")
    expect(page.locator(".count")).to_have_text("150 samples found")
    page.get_by_role("button", name="task-299").click()
    expect(page.locator(".history")).to_contain_text("Task task-299 over the run: 1 answer")


def test_a_curve_is_zoomed_by_dragging_and_by_keys(page: Page, address: str) -> None:
    page.goto(f"{address}#/run/first")
    chart = page.locator('[data-chart="reward_mean_all"] .u-over')
    box = chart.bounding_box()
    assert box
    reset = page.locator(".controls").get_by_role("button", name="Whole run")
    expect(reset).to_be_hidden()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=5)
    page.mouse.up()
    expect(reset).to_be_visible()
    chart.hover(position={"x": 3, "y": 60})
    expect(page.locator("#tip b")).to_contain_text("step 7")  # 75 or so: a quarter of 300
    reset.click()
    expect(reset).to_be_hidden()
    page.locator('[data-chart="reward_mean_all"] .chart').focus()
    page.keyboard.press("+")
    expect(reset).to_be_visible()
    page.keyboard.press("Escape")
    expect(reset).to_be_hidden()
    page.get_by_role("button", name="Tokens", exact=True).click()
    chart.hover(position={"x": 300, "y": 60})
    expect(page.locator("#tip")).to_contain_text("all judged answers")


def test_drift_is_shown_as_shares_that_add_up(page: Page, address: str) -> None:
    page.goto(f"{address}#/run/first")
    shares = page.locator('[data-chart="drift-shares"]')
    expect(shares).to_contain_text("0.01 nats")
    expect(shares.locator("li")).to_have_count(2)
    expect(shares.locator("li").first).to_contain_text("90% staleness")
    expect(shares).to_contain_text("The parts add up to 100% of the whole.")


def test_the_timeline_is_moved_through_the_whole_run(page: Page, address: str) -> None:
    page.goto(f"{address}#/run/first")
    rows = page.locator(".lanes")
    rows.scroll_into_view_if_needed()
    expect(rows).to_contain_text("engine 0")
    expect(rows).to_contain_text("step 150")
    rows.focus()
    page.keyboard.press("End")
    expect(rows).to_contain_text("step 300")
    page.keyboard.press("Home")
    expect(rows).to_contain_text("step 2")


def test_runs_stand_side_by_side_with_their_differences(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_label("Compare first").check()
    page.get_by_label("Compare second").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    differences = page.locator(".differences")
    expect(differences).to_contain_text("train.lr")
    expect(differences).to_contain_text("0.00003")
    expect(page.locator('[data-chart="reward_mean_all"] canvas')).to_be_visible()
    page.locator('[data-chart="reward_mean_all"] .u-over').hover(position={"x": 30, "y": 60})
    expect(page.locator("#tip")).to_contain_text("second")


@pytest.mark.parametrize("live", [True, False])
def test_what_models_write_is_text(page: Page, address: str, runs: Path, live: bool) -> None:
    report = write_report(RunFolder(runs / "hostile"))
    page.goto(f"{address}#/run/hostile" if live else report.as_uri())
    page.locator("#samples").scroll_into_view_if_needed()
    expect(page.locator(".detail .turn.policy .prose").first).to_contain_text("onerror=alert(1)")
    expect(page.locator(".detail .turn.tool")).to_contain_text("the tool's own words")
    expect(page.locator(".detail .facts")).to_contain_text("branch 2 of 2")
    page.locator(".list button").last.click()
    expect(page.locator(".detail .prose.given").first).to_contain_text("</script>")
    page.locator("#notes").scroll_into_view_if_needed()
    expect(page.locator("#notes")).to_contain_text("<img src=x")
    assert page.locator("img").count() == 0
    assert page.locator("main script").count() == 0


def test_the_report_is_the_same_page_without_a_server(page: Page, runs: Path) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    report = write_report(RunFolder(runs / "first"))
    page.goto(report.as_uri())
    expect(page.locator("h1")).to_have_text("first")
    expect(page.locator('[data-chart="reward_mean_all"] canvas')).to_be_visible()
    page.locator(".lanes").scroll_into_view_if_needed()
    expect(page.locator(".lanes")).to_contain_text("step 150")
    page.locator("#samples").scroll_into_view_if_needed()
    page.get_by_placeholder("Search in answers").fill("of step 299")
    expect(page.locator(".count")).to_contain_text("1 sample found")
    assert asked == [report.as_uri()]


@pytest.mark.parametrize(
    ("place", "said"),
    [("#/run/none", "there is no run 'none'"), ("#/compare/first,none", "there is no run 'none'")],
)
def test_a_run_that_is_not_there_is_a_message_on_the_page(page: Page, address: str, place: str, said: str) -> None:
    page.goto(address + place)
    expect(page.get_by_role("alert")).to_contain_text(said)


def test_damaged_lines_and_a_run_being_deleted_are_messages_on_the_page(page: Page, tmp_path: Path) -> None:
    folder = write_run(tmp_path, "old")
    with folder.metrics.open("ab") as file:
        file.write(b"{broken\n")
    with watching(tmp_path) as address:
        page.goto(f"{address}#/run/old")
        expect(page.locator(".problems")).to_contain_text("metrics.jsonl: 1 line could not be read and is left out")
        shutil.rmtree(folder.path)
        expect(page.locator(".problems")).to_contain_text("is gone")
        page.get_by_role("link", name="Runs").click()
        expect(page.locator("main")).to_contain_text("There is no run in")


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(
    browser: Browser, address: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto(f"{address}#/run/first")
    expect(page.locator("canvas").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert dark == ("rgb(20, 22, 26)" if scheme == "dark" else "rgb(250, 249, 247)")
    page.close()
