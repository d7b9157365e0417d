import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.core import FreerunError
from freerun.observe import payload, shown_samples
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
    return Page(write_report(folder, bound).read_text(encoding="utf-8"))


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
    folder.config.write_text("max_staleness: 4  # <default>\n")
    with Timeline(folder.timeline, start_s=0.0) as timeline:
        for i in range(50):
            timeline.span("engine 0", "generate", "generate", 2.0 * i, 2.0 * i + 2)
            timeline.span("engine 0", "update", "new weights", 2.0 * i + 1.99, 2.0 * i + 2, version=i + 1)
            timeline.span("trainer", "step", f"step {i + 1}", 2.0 * i + 0.5, 2.0 * i + 2)
            timeline.span("controller", "wait", "wait for a batch", 2.0 * i, 2.0 * i + 0.5)
    return folder


def test_the_headline_holds_the_figures_of_the_data(ran: RunFolder) -> None:
    text = page_of(ran).text
    for figure in [
        "Reward rose from 0.055 to 0.455 in 50 steps and 1m40s",
        "running at the same time for 75% of it",
        "busy at the same time for 1m15s of 1m40s: 75%",
        "0.300 → 0.700",
        "last 0.650 to 0.750 (95%), 100 tasks",
        "50k tokens in all",
        "1 of 4",
        "bound held",
        "50 no signal",
        "max_staleness: 4  # <default>",
    ]:
        assert figure in text


def test_the_charts_hold_the_data(ran: RunFolder) -> None:
    data = page_of(ran).data
    assert data["curves"]["reward_mean_all"] == [i / 100 for i in range(1, 51)]
    assert data["curves"]["trainer"].keys() == {"loss", "grad_norm"}
    assert data["histogram"] == [[0, 12_500], [1, 37_500]]
    assert data["bound"] == 4
    rows = {row["label"]: row for row in data["timeline"]["rows"]}
    assert list(rows) == ["engine 0", "trainer", "both busy", "controller waits"]
    assert len(rows["engine 0"]["updates"]) == 50
    assert rows["both busy"]["spans"][0][:2] == [0.5, 2.0]
    start, end = data["timeline"]["window"]
    assert end - start == pytest.approx(16.0)  # eight steps
    assert start < 50 < end


def test_the_page_needs_no_network(ran: RunFolder) -> None:
    text = write_report(ran, 4).read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=|@import|url\(|fetch\(|https?://(?!www\.w3\.org/2000/svg)""", text)
    assert [tag for tag, _ in Page(text).tags if tag in {"link", "img", "iframe"}] == []
    assert "default-src 'none'" in text


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
    (sample,) = page.data["samples"]["early"]
    assert [sample["prompt"], sample["tokens"][0], sample["task"]] == [HOSTILE] * 3
    assert HOSTILE in page.text  # the configuration, escaped


def test_an_empty_run_gets_a_readable_page(folder: RunFolder) -> None:
    page = page_of(folder)
    assert "Nothing was recorded." in page.text
    assert page.data["timeline"] is None
    assert page.data["samples"]["recorded"] == 0


def test_a_run_interrupted_before_its_first_step_says_what_it_was_doing(folder: RunFolder) -> None:
    with Timeline(folder.timeline, start_s=0.0) as timeline:
        timeline.span("engine 0", "load", "load the model", 0.0, 3.0)
        timeline.span("trainer", "load", "compile <it>", 1.0, 9.0)
    text = page_of(folder).text
    assert "No training step was completed in 9.0s." in text
    assert "compile <it>, 8.0s, ended at 9.0s" in text


def test_a_run_killed_while_writing_is_reported_up_to_there(ran: RunFolder) -> None:
    for path in (ran.metrics, ran.evals, ran.samples, ran.timeline):
        path.write_bytes(path.read_bytes()[:-20])
    text = page_of(ran).text
    assert "in 49 steps" in text


@pytest.mark.parametrize("bound", [None, 0, 4])
def test_a_single_step_and_missing_numbers_are_no_obstacle(folder: RunFolder, bound: int | None) -> None:
    append(
        folder.metrics, a_step(1, reward_mean=math.nan, reward_mean_all=math.nan, trainer={}, staleness_histogram={})
    )
    page = page_of(folder, bound)
    assert "no sample was judged" in page.text
    assert page.data["curves"]["reward_mean"] == [None]


def test_a_broken_bound_is_marked(folder: RunFolder) -> None:
    append(folder.metrics, a_step(1, staleness_max=3, staleness_histogram={"3": 10}))
    page = page_of(folder, bound=2)
    assert "3 of 2" in page.text
    assert "bound broken" in page.text
    assert any("bad" in (attributes.get("class") or "") for tag, attributes in page.tags if tag == "div")


def test_a_long_run_is_reduced_and_says_so(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "POINTS", 10)
    monkeypatch.setattr(payload, "SPANS", 100)
    append(folder.metrics, *(a_step(i, reward_mean=float(i), staleness_max=i % 4) for i in range(1, 96)))
    with Timeline(folder.timeline, start_s=0.0) as timeline:
        for i in range(1000):
            timeline.span("engine 0", "generate", "generate", i, i + 0.999)
            timeline.span("trainer", "step", f"step {i}", i + 0.5, i + 0.9)
    data = page_of(folder).data
    assert data["curves"]["each"] == 10
    assert data["curves"]["step"] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 95]
    assert data["curves"]["reward_mean"][0] == pytest.approx(5.5)
    assert set(data["curves"]["staleness_max"]) == {3}
    low, high = data["timeline"]["detail"]
    start, end = data["timeline"]["window"]
    assert low < start < end < high
    engine = data["timeline"]["rows"][0]["spans"]
    assert len(engine) < 60
    assert math.fsum(e - s for s, e, *_ in engine) == pytest.approx(1000, abs=2)


def test_engines_past_eight_are_counted_but_not_drawn(folder: RunFolder) -> None:
    append(folder.metrics, a_step(1))
    with Timeline(folder.timeline, start_s=0.0) as timeline:
        for number in range(12):
            timeline.span(f"engine {number}", "generate", "generate", 0.0, 1.0)
    drawn = page_of(folder).data["timeline"]
    assert [row["label"] for row in drawn["rows"]] == [f"engine {number}" for number in range(8)]
    assert drawn["engines_left_out"] == 4


def test_samples_come_from_both_ends_with_the_best_and_worst_of_a_group(folder: RunFolder) -> None:
    keep_samples(
        folder.samples, *(a_sample(step, reward=reward) for step in range(1, 401) for reward in (0.5, 0.0, 1.0))
    )
    chosen = page_of(folder).data["samples"]
    assert chosen["recorded"] == 1200
    assert [(s["step"], s["reward"]) for s in chosen["early"][:4]] == [(1, 1.0), (1, 0.0), (2, 1.0), (2, 0.0)]
    assert [s["step"] for s in chosen["late"][:3]] == [400, 400, 399]
    assert len(chosen["early"]) == len(chosen["late"]) == shown_samples.SAMPLES


def test_a_very_long_sample_is_cut_and_keeps_its_length(folder: RunFolder) -> None:
    long = 10_000
    keep_samples(
        folder.samples, a_sample(1, tokens=["a"] * long, logprobs=[-0.1] * long, versions=[0] * long, reward=None)
    )
    (sample,) = page_of(folder).data["samples"]["early"]
    assert (sample["length"], len(sample["tokens"]), sample["reward"]) == (long, shown_samples.SAMPLE_TOKENS, None)


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
    page = Page(write_report(folder, 4).read_text())
    assert "Training steps" in page.text
    sparkline([two for _, two, _ in rows])


def test_notes_are_on_the_page_as_text(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    append(folder.metrics, a_step())
    append(folder.notes, *(NoteRecord(step, 1.0, f"{step}: {HOSTILE}") for step in range(60)))
    page = Page(write_report(folder, None).read_text())
    assert f"step 59: 59: {HOSTILE}" in page.text
    assert "step 9: " not in page.text, "it has 60, and the last 50 are shown"


def test_what_ended_a_run_is_not_hidden_by_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    folder.report.with_name("report.html.unfinished").mkdir()
    with pytest.raises(ValueError, match="the first cause"), reported(folder, None):
        raise ValueError("the first cause")
    with pytest.raises(FreerunError, match=r"report\.html cannot be written"), reported(folder, None):
        pass
