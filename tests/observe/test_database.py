"""run.db: every sample, found again by any string, whoever is killed and whatever the disk does."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.core import Batch, DataError, DropReason, FinishReason, Group, Sample, Task
from freerun.core.groups import GroupEvent, Position, Stage
from freerun.core.observer import Observer
from freerun.core.reports import StepResult
from freerun.observe import samples as kept_samples
from freerun.observe import search
from freerun.observe.database import SampleDatabase
from freerun.observe.sample_reader import EXCERPT, SamplePage, SampleReader
from freerun.observe.sample_rows import EndedGroup, rows_of
from freerun.observe.samples import KeptSamples
from freerun.observe.search import SampleFilter
from tests.control.test_promises import Letters
from tests.observe.runs import a_step

Texts = list[str]


class Said(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def sample(text: str, reward: float | None = 1.0, finish: FinishReason = FinishReason.STOP, version: int = 0) -> Sample:
    """A prompt of one token, and one for each letter of the text, at most 20."""
    length = min(len(text), 20)
    sampled = [ord(letter) % 26 for letter in text[:length]]
    logprobs = [0.0] + [-0.5 - place for place in range(length)]
    return Sample([0, *sampled], [False] + [True] * length, logprobs, [-1] + [version] * length, finish, text, reward)


def group(number: int, *samples: Sample, task: str = "", unjudged: tuple[Sample, ...] = ()) -> Group:
    asked = Task(task or f"task-{number}", f"prompt {number}", [0], "42")
    return Group(number, asked, list(samples), 0, list(unjudged))


def write(path: Path, texts: Texts, per_step: int = 4) -> None:
    with closing(SampleDatabase(path, Letters())) as database:
        for start in range(0, len(texts), per_step):
            made = group(start, *map(sample, texts[start : start + per_step]))
            database.add([made], list(rows_of(EndedGroup(made, start // per_step + 1))))


def found(path: Path, **wanted: object) -> Texts:
    with closing(SampleReader(path)) as reader:
        rows, before = [], None
        while True:
            page = reader.page(SampleFilter(**wanted), before, limit=3)  # type: ignore[arg-type]
            rows += page.rows
            if not page.more:
                return [record.text for record in reader.many([row.id for row in rows])]
            before = page.next_before


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


def learned(kept: KeptSamples, *groups: Group, version: int = 0, before: list[np.ndarray] | None = None) -> None:
    """A step as the loop tells of it."""
    for one in groups:
        kept.judged(one)
    kept.learning(Batch(version, list(groups)), 0)
    for one in groups:
        kept.group(GroupEvent(Stage.TRAINED, one.id, one.task.id, Position(), version))
    kept.stepped(StepResult(version + 1, before_logprobs=before))
    kept.step(a_step(version + 1))


def dropped(kept: KeptSamples, one: Group, reason: DropReason, version: int) -> None:
    kept.judged(one)
    kept.group(GroupEvent(Stage.DROPPED, one.id, one.task.id, Position(), version, reason=reason))


def test_every_sample_is_kept_with_its_fate_and_step(path: Path) -> None:
    with closing(KeptSamples(path, Letters(), Said(), 1.0)) as kept:
        dropped(kept, group(0, sample("same"), sample("same")), DropReason.NO_SIGNAL, 0)
        learned(kept, group(1, sample("a"), sample("b", 0.0)), group(2, sample("c"), unjudged=(sample("odd", None),)))
        dropped(kept, group(3, sample("old")), DropReason.TOO_STALE, 1)
        learned(kept, group(4, sample("d", version=1)), version=1)
        dropped(kept, group(5, sample("late")), DropReason.RUN_ENDED, 2)
    with closing(SampleReader(path)) as reader:
        rows = reader.page(SampleFilter()).rows[::-1]
        told = [(row.step, row.excerpt, row.fate, row.reward, row.task) for row in rows]
    assert told == [
        (1, "same", "no_signal", 1.0, "task-0"),
        (1, "same", "no_signal", 1.0, "task-0"),
        (1, "a", "trained", 1.0, "task-1"),
        (1, "b", "trained", 0.0, "task-1"),
        (1, "c", "trained", 1.0, "task-2"),
        (1, "odd", "judge_failed", None, "task-2"),
        (2, "old", "too_stale", 1.0, "task-3"),
        (2, "d", "trained", 1.0, "task-4"),
        (3, "late", "run_ended", 1.0, "task-5"),
    ]
    assert [(row.member, row.version) for row in rows[:2]] == [(0, 0), (1, 0)]


def test_a_sample_comes_back_token_by_token_with_the_trainer_s_log_probabilities(path: Path) -> None:
    before = [np.array([-0.5, -1.0, np.nan], np.float32), np.array([-0.5], np.float32)]
    with closing(KeptSamples(path, Letters(), Said(), 1.0)) as kept:
        learned(kept, group(0, sample("abc", version=2), sample("z")), version=4, before=before)
    with closing(SampleReader(path)) as reader:
        last, first = (reader.one(row.id) for row in reader.page(SampleFilter()).rows)
        (stale,) = reader.page(SampleFilter(staleness_min=3)).rows[:1]
    assert (first.text, first.prompt, first.answer, first.step, first.version) == ("abc", "prompt 0", "42", 5, 4)
    assert "".join(first.tokens) == Letters().decode([ord(letter) % 26 for letter in "abc"])
    assert (first.logprobs, first.versions) == ([-0.5, -1.5, -2.5], [2, 2, 2])
    assert first.before == [-0.5, -1.0, None]
    assert first.ratios is not None
    assert first.ratios[:2] == pytest.approx([1.0, np.exp(0.5)])
    assert (first.ratios[2], last.ratios) == (None, [1.0])
    assert (stale.id, stale.staleness_max) == (last.id, 4)


ALPHABET = "abA é\"'*%_\n\t\0{}因此。🦒-"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(ALPHABET, max_size=12), min_size=1, max_size=12), st.text(ALPHABET, min_size=1, max_size=5))
def test_any_string_is_found_where_it_is_and_nowhere_else(
    tmp_path_factory: pytest.TempPathFactory, texts: Texts, needle: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "run.db"
    write(path, texts)

    def folded(text: str) -> str:
        return text.replace("\0", " ").lower()

    assert found(path, text=needle) == [text for text in reversed(texts) if folded(needle) in folded(text)]


def test_all_ways_to_look_for_a_text_find_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the index, by looking through what passes a filter, by what begins with one or two characters."""
    chance = random.Random(0)
    texts = ["".join(chance.choices("ab ", k=chance.randrange(9))) for _ in range(300)]
    write(path, texts, per_step=7)
    wanted = {needle: [text for text in reversed(texts) if needle in text] for needle in ("a", "ab", "bb ", "ba ab")}
    for few, scanned, chunk in ((5000, 5000, 500), (0, 0, 2), (10, 20, 10)):
        monkeypatch.setattr(search, "_FEW", few)
        monkeypatch.setattr(search, "_SCANNED", scanned)
        monkeypatch.setattr(search, "_CHUNK", chunk)
        for needle, expected in wanted.items():
            assert found(path, text=needle) == expected
            assert found(path, text=needle, reward_min=0.5) == expected
            assert found(path, text=needle, reward_min=1.5) == []
    monkeypatch.setattr(search, "_MOST_TERMS", 1)
    assert found(path, text="ab") == wanted["ab"]


def test_a_search_without_an_end_is_cut_short_and_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, ["rare" if place == 0 else "common" for place in range(40)])
    monkeypatch.setattr(search, "PAGE_S", 0.0)
    monkeypatch.setattr(search, "_CHUNK", 4)
    with closing(SampleReader(path)) as reader:
        page = reader.page(SampleFilter(text="ra", step_min=1))
        assert (page.rows, page.total, page.total_is_exact, page.more) == ([], 0, False, True)
    assert found(path, text="ra", step_min=1) == ["rare"]


def test_filters_hold_together(path: Path) -> None:
    cut = FinishReason.LENGTH
    with closing(KeptSamples(path, Letters(), Said(), 1.0)) as kept:
        branches = [sample("branch one"), sample("branch two")]
        for branch in branches:
            branch.member = 0
        learned(kept, group(0, *branches, sample("alone", 0.0)), group(1, sample("long", 0.5, cut), task="other"))
        dropped(kept, group(2, sample("dull", 0.0)), DropReason.NO_SIGNAL, 1)
        learned(kept, group(3, sample("second", 0.25), task="other"), version=1)
    assert found(path, branch=True) == ["branch two", "branch one"]
    assert found(path, truncated=True) == found(path, finish="length") == ["long"]
    assert found(path, truncated=False, reward_max=0.25) == ["second", "dull", "alone"]
    assert found(path, reward_min=0.25, reward_max=0.5) == ["second", "long"]
    assert found(path, task="other", step_max=1) == ["long"]
    assert found(path, task="other", text="o") == ["second", "long"]
    assert found(path, fate="no_signal") == ["dull"]
    assert found(path, step_min=2) == ["second", "dull"]
    assert found(path, step_min=2, reward_min=0.7) == []
    with closing(SampleReader(path)) as reader:
        assert [row.excerpt for row in reader.task_history("other")] == ["long", "second"]
        assert (reader.count(), reader.page(SampleFilter(reward_max=0.0)).total) == (6, 2)
        assert reader.page(SampleFilter(), limit=6) == reader.page(SampleFilter(), limit=60)


def test_odd_text_breaks_nothing(path: Path) -> None:
    """Half characters, NUL bytes, markup, a text of millions."""
    odd = ["half \ud83d", "a\0nul\0b", "<script>", "x" * 3_000_000 + " the end", ""]
    write(path, odd)
    assert found(path, text="half \ufffd") == ["half \ufffd"]
    assert found(path, text="nul\0b") == ["a\0nul\0b"]
    assert found(path, text="X THE END") == [odd[3]]
    with closing(SampleReader(path)) as reader:
        (row,) = reader.page(SampleFilter(text="the end")).rows
        assert len(row.excerpt) < EXCERPT + 1
        assert row.match is not None
        assert row.excerpt[slice(*row.match)] == "the end"


def test_odd_filters_break_nothing(path: Path) -> None:
    write(path, ["one", "half \ud83d"])
    assert found(path, text="\ud83d") == found(path, text="f \ud83d") == ["half \ufffd"]
    assert found(path, task="\ud83d") == found(path, reward_min=1e300) == found(path, text="x" * 100_000) == []
    assert found(path, reward_min=float("nan")) == found(path, text='" OR "') == []
    with pytest.raises(DataError, match="too large"):
        found(path, step_min=10**30)
    with pytest.raises(DataError, match="has no sample 99"):
        SampleReader(path).one(99)


def test_a_run_that_goes_on_forgets_later_steps_and_appends(path: Path) -> None:
    write(path, ["one", "two", "three"], per_step=1)
    with closing(KeptSamples(path, Letters(), Said(), 1.0, last_step=1)) as kept:
        learned(kept, group(7, sample("two again")), version=1)
    assert found(path) == ["two again", "one"]
    assert found(path, text="three") == [], "the index has forgotten it, too"
    assert found(path, text="two") == ["two again"]


def test_past_the_disk_space_a_few_are_kept(path: Path) -> None:
    said = Said()
    many = [group(number, *(sample(f"{number} {place}") for place in range(4))) for number in range(3)]
    with closing(KeptSamples(path, Letters(), said, 1e-9)) as kept:
        for version in range(2):
            dropped(kept, group(9, sample("dull")), DropReason.NO_SIGNAL, version)
            learned(kept, *many, version=version)
    assert found(path) == ["0 1", "0 0", "0 1", "0 0"]
    assert said.notes == ["run.db has the 1e-09 GiB of keep_samples_gib: from now on a few samples a step are kept"]


def test_a_disk_that_fails_costs_samples_and_no_step(tmp_path: Path) -> None:
    """The folder is gone: nothing can be written there."""
    said = Said()
    with closing(KeptSamples(tmp_path / "gone" / "run.db", Letters(), said, 1.0)) as kept:
        for version in range(3):
            learned(kept, group(version, sample("x")), version=version)
    (note,) = said.notes
    assert note.startswith("run.db cannot be written (")
    assert note.endswith("from now on no samples are kept, and the run goes on")


def test_a_disk_that_fills_up_keeps_whole_steps(path: Path) -> None:
    """A limit on the size of files: the system refuses what is past it, as a full disk does."""
    program = f"""
import resource, signal
from contextlib import closing
from pathlib import Path
from tests.observe.test_database import KeptSamples, Letters, Said, group, learned, sample
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
said = Said()
with closing(KeptSamples(Path({str(path)!r}), Letters(), said, 1.0)) as kept:
    for version in range(200):
        learned(kept, group(version, *(sample(f"{{version}} " + "x" * 5000) for _ in range(4))), version=version)
print(said.notes)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("run.db cannot be written") == 1
    with closing(SampleReader(path)) as reader:
        count = reader.count()
        assert 0 < count < 800
        assert count % 4 == 0
        assert len(reader.page(SampleFilter(text="xxx"), limit=800).rows) == count


def test_a_slow_disk_leaves_steps_out_and_stops_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_samples, "MOST_WAITING_TOKENS", 3)
    said, holds = Said(), sqlite3.connect(path, isolation_level=None)
    with closing(KeptSamples(path, Letters(), said, 1.0)) as kept:
        learned(kept, group(0, sample("first")))
        while not path.with_name("run.db-wal").exists():
            pass
        holds.execute("BEGIN IMMEDIATE")  # nobody else can write now
        for version in range(1, 5):
            learned(kept, group(version, sample("later")), version=version)
        holds.execute("ROLLBACK")
        holds.close()
    assert any("not all samples are kept" in note for note in said.notes)
    assert 1 <= len(found(path)) < 5


def test_a_damaged_file_is_put_aside_and_the_run_goes_on(path: Path) -> None:
    path.write_bytes(b"no database at all" * 1000)
    said = Said()
    with closing(KeptSamples(path, Letters(), said, 1.0, last_step=3)) as kept:
        learned(kept, group(0, sample("x")), version=3)
    assert found(path) == ["x"]
    assert "it is kept aside as run.db.damaged" in said.notes[0]
    assert path.with_name("run.db.damaged").is_file()


KILLED = """
import sys
from pathlib import Path
from tests.observe.test_database import EndedGroup, Letters, SampleDatabase, group, rows_of, sample
database = SampleDatabase(Path(sys.argv[1]), Letters())
for step in range(1, 10**9):
    made = group(step, *(sample(f"step {step} sample {n} " + "word " * 200) for n in range(16)))
    database.add([made], list(rows_of(EndedGroup(made, step))))
    print(step, flush=True)
"""


def test_kill_9_at_any_moment_leaves_whole_steps_and_a_file_that_goes_on(path: Path) -> None:
    chance = random.Random(0)
    for round in range(3):
        path.unlink(missing_ok=True)
        program = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
        assert program.stdout
        for _ in range(1 + chance.randrange(40)):
            said = program.stdout.readline()
        os.kill(program.pid, signal.SIGKILL)
        written = int((said + program.stdout.read()).split()[-1])
        program.wait()
        with closing(SampleReader(path)) as reader:
            steps = {row.step for row in reader.page(SampleFilter(), limit=10**6).rows}
            assert reader.count() == 16 * len(steps), "a step is there as a whole"
            assert steps in ({*range(1, written + 1)}, {*range(1, written + 2)})
        with closing(KeptSamples(path, Letters(), Said(), 1.0, last_step=1)) as kept:
            learned(kept, group(0, sample("after the kill")), version=1)
        assert found(path, text="after the kill") == ["after the kill"], round
        assert len(found(path, text="step 1 sample")) == 16
        assert len(found(path)) == 17


def test_others_read_while_the_run_writes(path: Path) -> None:
    with closing(KeptSamples(path, Letters(), Said(), 1.0)) as kept, closing(SampleReader(path)) as reader:
        with pytest.raises(DataError):
            SampleReader(path.with_name("other.db")).count()
        for version in range(30):
            learned(kept, group(version, sample(f"step {version}")), version=version)
            while True:
                try:
                    page: SamplePage = reader.page(SampleFilter(text=f"step {version}"))
                except DataError:  # it is only being made
                    continue
                if page.rows:
                    break
        assert reader.count() == 30


@pytest.mark.parametrize("content", [None, b"", b"garbage" * 999], ids=["missing", "empty", "garbage"])
def test_what_is_no_database_is_one_line(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        SampleReader(path).page(SampleFilter())
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_damaged_page_is_one_line(path: Path) -> None:
    write(path, ["text " * 50] * 400)
    whole = bytearray(path.read_bytes())
    whole[8192:] = os.urandom(len(whole) - 8192)
    path.write_bytes(whole)
    with pytest.raises(DataError) as refused, closing(SampleReader(path)) as reader:
        reader.page(SampleFilter(text="text"))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_replaced_or_deleted_is_noticed(path: Path) -> None:
    write(path, ["first"])
    with closing(SampleReader(path)) as reader:
        assert reader.count() == 1
        path.unlink()
        with pytest.raises(DataError, match="missing"):
            reader.count()
        write(path, ["second", "third"])
        assert reader.count() == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_one_may_only_read_is_enough(path: Path) -> None:
    write(path, ["first"])
    path.parent.chmod(0o500)
    try:
        assert found(path) == ["first"]
    finally:
        path.parent.chmod(0o700)
