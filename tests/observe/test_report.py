import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.core import FreerunError
from freerun.observe import report as report_module
from freerun.observe.folder import JsonLines, RunFolder
from freerun.observe.live import sparkline
from freerun.observe.records import NoteRecord
from freerun.observe.report import reported, write_report
from freerun.observe.timeline import Timeline
from tests.observe.runs import a_sample, a_step, an_eval, keep_samples

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)><!-- \u2028 $data ${title} &amp;"


class Page(HTMLParser):
    """What a browser would see: elements, the text outside of scripts, and what each script holds."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


def page_of(folder: RunFolder, bound: int | None = 4) -> Page:
    if not folder.config.exists() and bound is not None:
        folder.config.write_text(f"control: {{max_staleness: {bound}}}")
    return Page(write_report(folder).read_text(encoding="utf-8"))


def append(path: Path, *records: Any) -> None:
    with JsonLines(path) as lines:
        for record in records:
            lines.append(record)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "demo")


@pytest.fixture
def ran(folder: RunFolder) -> RunFolder:
    """Fifty steps: engine busy from 0 to 100 s but for swaps, trainer busy for 1.5 of every 2 s."""
    append(folder.metrics, *(a_step(i, reward_mean_all=i / 100, dropped={"no_signal": i}) for i in range(1, 51)))
    append(folder.evals, an_eval(0, 0.3), an_eval(50, 0.7))
    keep_samples(folder.samples, *(a_sample(i) for i in range(1, 51)))
    folder.config.write_text("control: {max_staleness: 4}  # <default>\n")
    with Timeline(folder.timeline, start_s=0.0) as timeline:
        for i in range(50):
            timeline.span("engine 0", "generate", "generate", 2.0 * i, 2.0 * i + 2)
            timeline.span("engine 0", "update", "new weights", 2.0 * i + 1.99, 2.0 * i + 2, version=i + 1)
            timeline.span("trainer", "step", f"step {i + 1}", 2.0 * i + 0.5, 2.0 * i + 2)
            timeline.span("controller", "wait", "wait for a batch", 2.0 * i, 2.0 * i + 0.5)
    return folder


def test_the_headline_holds_the_figures_of_the_data(ran: RunFolder) -> None:
    page = page_of(ran)
    for figure in [
        "Reward rose from 0.055 to 0.455 in 50 steps and 1m40s",
        "running at the same time for 75% of it",
        "0.300 → 0.700",
        "last 0.650 to 0.750 (95%), 100 tasks",
        "50k tokens in all",
        "1 of 4",
        "bound held",
        "50 no signal",
    ]:
        assert figure in page.text
    assert "busy at the same time for 1m15s of 1m40s: 75%" in page.data["overview"]["overlap"]
    assert "max_staleness: 4}  # <default>" in page.data["overview"]["config"]


def test_the_charts_hold_the_data(ran: RunFolder) -> None:
    data = page_of(ran).data
    columns = data["curves"]["columns"]
    assert columns["reward_mean_all"] == [i / 100 for i in range(1, 51)]
    assert {name for name in columns if name.startswith("trainer/")} == {"trainer/loss", "trainer/grad_norm"}
    assert columns["tokens"] == [1000.0 * i for i in range(1, 51)]
    assert data["overview"]["histogram"] == [[0, 12_500], [1, 37_500]]
    assert data["overview"]["bound"] == 4
    rows = {(row["process"], row["track"]): row["bars"] for row in data["timeline"]["detail"]["rows"]}
    assert list(rows) == [("engine 0", "generate"), ("engine 0", "update"), ("trainer", "step"), ("controller", "wait")]
    assert len(rows["engine 0", "update"]) == 50
    assert rows["engine 0", "update"][0][2:4] == ["new weights", {"version": 1}]
    start, end = data["timeline"]["detail"]["opening"]
    assert end - start == pytest.approx(16.0)  # eight steps
    assert start < 50 < end


def test_every_figure_that_is_drawn_is_described(ran: RunFolder) -> None:
    described = page_of(ran).data["described"]
    assert described["metrics"]["trainer/loss"]["healthy"]
    assert {metric["section"] for metric in described["metrics"].values()} == set(described["sections"])


def test_the_page_needs_no_network(ran: RunFolder) -> None:
    text = write_report(ran).read_text(encoding="utf-8")
    page = Page(text)
    assert [tag for tag, _ in page.tags if tag in {"link", "img", "iframe"}] == []
    assert all(not {"src", "href"} & set(attributes) for _, attributes in page.tags)
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text, "so that the browser refuses whatever a script might ask for"


def test_hostile_text_stays_text_wherever_it_comes_from(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "<b>demo<")
    append(folder.metrics, a_step(1, dropped={HOSTILE: 1}, trainer={HOSTILE: 1.0}))
    keep_samples(
        folder.samples,
        a_sample(1, prompt=HOSTILE, text=HOSTILE, answer=HOSTILE, task=HOSTILE, tokens=[HOSTILE, "b"]),
    )
    folder.config.write_text(HOSTILE)
    with Timeline(folder.timeline, start_s=0.0) as timeline:
        timeline.span("trainer", "step", HOSTILE, 0.0, 1.0, note=HOSTILE)
    page = page_of(folder)
    assert len(page.scripts) == 2  # the data and ours
    assert not {"img", "b"} & {tag for tag, _ in page.tags}
    assert all(key[:2] != "on" for _, attributes in page.tags for key in attributes)
    (sample,) = page.data["samples"]["records"].values()
    assert [sample["prompt"], sample["tokens"][0], sample["task"]] == [HOSTILE] * 3
    assert page.data["overview"]["config"] == HOSTILE


def test_an_empty_run_gets_a_readable_page(folder: RunFolder) -> None:
    page = page_of(folder, bound=None)
    assert "Nothing was recorded yet." in page.text
    assert page.data["timeline"]["whole"]["rows"] == []
    assert page.data["samples"] == {"rows": [], "records": {}, "recorded": 0}


def test_a_run_interrupted_before_its_first_step_says_what_it_was_doing(folder: RunFolder) -> None:
    with Timeline(folder.timeline, start_s=0.0) as timeline:
        timeline.span("engine 0", "load", "load the model", 0.0, 3.0)
        timeline.span("trainer", "load", "compile <it>", 1.0, 9.0)
    page = page_of(folder)
    assert "No training step was completed in 9.0s." in page.text
    assert "trainer, load: 8.0s, ended at 9.0s" in page.data["overview"]["last_seen"]


def test_a_run_killed_while_writing_is_reported_up_to_there(ran: RunFolder) -> None:
    for path in (ran.metrics, ran.evals, ran.timeline):
        path.write_bytes(path.read_bytes()[:-20])
    page = page_of(ran)
    assert "in 49 steps" in page.text
    assert page.data["overview"]["problems"] == []


def test_damaged_lines_and_a_damaged_database_are_said_and_the_rest_is_shown(ran: RunFolder) -> None:
    lines = ran.metrics.read_bytes().splitlines(keepends=True)
    ran.metrics.write_bytes(b"".join([*lines[:10], b"{half a li\n", b"[1, 2]\n", *lines[10:]]))
    ran.notes.write_bytes(b"no note at all\n")
    ran.samples.write_bytes(b"x" * 5000)
    page = page_of(ran)
    assert "in 50 steps" in page.text
    assert page.data["overview"]["problems"] == [
        "metrics.jsonl: 2 lines could not be read and are left out",
        "notes.jsonl: 1 line could not be read and is left out",
    ]
    assert page.data["samples"]["rows"] == []


@pytest.mark.parametrize("bound", [None, 0, 4])
def test_a_single_step_and_missing_numbers_are_no_obstacle(folder: RunFolder, bound: int | None) -> None:
    nothing: dict[str, Any] = {"trainer": {}, "staleness_histogram": {}, "judgements": {"error": 8}}
    append(folder.metrics, a_step(1, reward_mean=math.nan, reward_mean_all=math.nan, **nothing))
    page = page_of(folder, bound)
    assert "no sample was judged" in page.text


def test_supervised_training_is_told_by_its_loss(folder: RunFolder) -> None:
    unjudged: dict[str, Any] = {"reward_mean": math.nan, "reward_mean_all": math.nan, "staleness_histogram": {}}
    append(folder.metrics, *(a_step(i, trainer={"loss": 1 / i}, **unjudged) for i in range(1, 41)))
    page = page_of(folder)
    assert "Loss fell from" in page.text
    assert page.data["overview"]["supervised"] is True


def test_a_broken_bound_is_marked(folder: RunFolder) -> None:
    append(folder.metrics, a_step(1, staleness_max=3, staleness_histogram={"3": 10}))
    page = page_of(folder, bound=2)
    assert "3 of 2" in page.text
    assert "bound broken" in page.text
    assert any("bad" in (attributes.get("class") or "") for tag, attributes in page.tags if tag == "div")


def test_a_long_run_is_reduced(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "POINTS", 10)
    monkeypatch.setattr(report_module, "SPANS", 100)
    append(folder.metrics, *(a_step(i, reward_mean=float(i), staleness_max=i % 4) for i in range(1, 96)))
    with Timeline(folder.timeline, start_s=0.0) as timeline:
        for i in range(1000):
            timeline.span("engine 0", "generate", "generate", i, i + 0.999)
            timeline.span("trainer", "step", f"step {i}", i + 0.5, i + 0.9)
    data = page_of(folder).data
    assert data["curves"]["each"] == 10
    assert data["curves"]["columns"]["step"] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 95]
    assert data["curves"]["columns"]["reward_mean"][0] == pytest.approx(5.5)
    assert set(data["curves"]["columns"]["staleness_max"]) == {3}
    detail, whole = data["timeline"]["detail"], data["timeline"]["whole"]
    low, high = detail["opening"]
    assert detail["from"] < low < high < detail["to"]
    engine = whole["rows"][0]["bars"]
    assert len(engine) < 60
    assert math.fsum(end - start for start, end, *_ in engine) == pytest.approx(1000, abs=2)
    assert sum(bar[4] for bar in engine) == 1000


def test_samples_come_from_both_ends_and_the_middle(folder: RunFolder) -> None:
    keep_samples(folder.samples, *(a_sample(step, reward=reward) for step in range(1, 401) for reward in (0.5, 0.0)))
    chosen = page_of(folder).data["samples"]
    steps = [row["step"] for row in chosen["rows"]]
    assert chosen["recorded"] == 800
    assert len(steps) == len(chosen["records"]) <= report_module.SAMPLES
    assert steps == sorted(steps, reverse=True)
    assert (steps[0], steps[-1]) == (400, 1)
    assert any(100 < step < 300 for step in steps)
    assert chosen["records"][str(chosen["rows"][0]["id"])]["step"] == 400


def test_samples_are_left_out_where_they_would_make_the_page_too_large(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "SAMPLE_BYTES", 60_000)
    long = 10_000
    huge = a_sample(1, tokens=["a"] * long, logprobs=[-0.1] * long, versions=[0] * long, reward=None)
    keep_samples(folder.samples, *(a_sample(step) for step in range(2, 400)), huge)
    page_of(folder)
    chosen = page_of(folder).data["samples"]
    assert chosen["recorded"] == 399
    assert 0 < len(chosen["rows"]) < 200
    assert 1 not in [row["step"] for row in chosen["rows"]]


figures = st.floats() | st.sampled_from([1e300, -1e300, 1.7e308, -1.7e308, 5e-324, math.inf, math.nan, 0.0])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(figures, figures, figures), min_size=1, max_size=30))
def test_a_report_is_written_whatever_the_figures(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, float, float]]
) -> None:
    folder = RunFolder.create(tmp_path_factory.mktemp("absurd"), "run")
    steps = [
        a_step(number, reward_mean=one, reward_mean_all=two, tokens_per_s=two, trainer={"loss": three})
        for number, (one, two, three) in enumerate(rows, start=1)
    ]
    append(folder.metrics, *steps)
    keep_samples(folder.samples, a_sample(reward=rows[0][0]))
    page = Page(write_report(folder).read_text())
    assert "Training steps" in page.text
    sparkline([two for _, two, _ in rows])


def test_notes_are_on_the_page_as_text(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    append(folder.metrics, a_step())
    append(folder.notes, *(NoteRecord(step, 1.0, f"{step}: {HOSTILE}") for step in range(60)))
    page = Page(write_report(folder).read_text())
    assert f"step 59: 59: {HOSTILE}" in page.text
    assert "step 9: " not in page.text, "it has 60, and the last 50 are shown"


def test_what_ended_a_run_is_not_hidden_by_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    folder.report.with_name("report.html.unfinished").mkdir()
    with pytest.raises(ValueError, match="the first cause"), reported(folder):
        raise ValueError("the first cause")
    with pytest.raises(FreerunError, match=r"report\.html cannot be written"), reported(folder):
        pass
