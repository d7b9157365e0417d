"""`examples/gsm8k/variants.py`: problems with other numbers, on rows written here."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.gsm8k import variants as program
from examples.gsm8k.arithmetic import compute, parse
from examples.gsm8k.drawing import drawn
from examples.gsm8k.drills import drills
from examples.gsm8k.numerals import IN_WORDS, Form, Number, exact, words_value
from examples.gsm8k.template import Reason, Refused
from examples.gsm8k.tracing import trace
from examples.gsm8k.variants import variants

Row = dict[str, str]
ROOT = Path(__file__).parents[2]

BOOKS = {
    "question": "Mia fills 12 shelves with 8 books each. She gives 30 books away. How many books has she left?",
    "answer": "She has 12 * 8 = <<12*8=96>>96 books.\nShe has 96 - 30 = <<96-30=66>>66 books left.\n#### 66",
}
LAMP = {
    "question": "A lamp costs $40.00. In a sale it is 20% cheaper. What do 3 lamps cost then?",
    "answer": "It costs 100 - 20 = <<100-20=80>>80% of the price, $40.00 x .8 = $<<40*.8=32.00>>32.00\n"
    "So 3 lamps cost $32.00 x 3 = $<<32*3=96.00>>96.00\n#### 96",
}
RUN = {
    "question": "Ben runs 9 miles a day. How far does he run in two weeks?",
    "answer": "Two weeks are 7 days x 2 = <<7*2=14>>14 days.\nHe runs 14*9=126 miles.\n#### 126",
}
PEARS = {
    "question": "Of 12 pears 5 are green and 7 are yellow. Each green one costs $3, each yellow one $2,000. "
    "What do all 12 cost?",
    "answer": "The green ones cost 5*3=$<<5*3=15>>15.\nThe yellow ones cost 7*2,000=$<<7*2000=14000>>14,000.\n"
    "All 5+7=<<5+7=12>>12 pears cost 14,000+15=$<<14000+15=14015>>14,015.\n#### 14015",
}
ROWS = [BOOKS, LAMP, RUN, PEARS]


def numbers(text: str) -> list[Number]:
    return [exact(found) for found in re.findall(r"\d{1,3}(?:,\d{3})+|\d*\.\d+|\d+", text)]


def final(row: Row) -> Number:
    return exact(row["answer"].rpartition("#### ")[2])


def some(row: Row, count: int = 20, seed: int = 0) -> list[Row]:
    return variants(row, count, random.Random(seed))


@pytest.mark.parametrize("row", ROWS, ids=["books", "lamp", "run", "pears"])
def test_the_original_numbers_give_the_original_back(row: Row) -> None:
    template = trace(**row)
    assert template.filled(template.values({})) == row


def test_every_place_of_a_number_changes_with_it() -> None:
    made = some(BOOKS)
    assert len({row["question"] for row in made}) == len(made) == 20
    for row in made:
        a, b, c = numbers(row["question"])
        assert row["question"] == BOOKS["question"].replace("12", f"{a}").replace("8 b", f"{b} b").replace("30", f"{c}")
        ab, left = a * b, a * b - c
        assert row["answer"] == (
            f"She has {a} * {b} = <<{a}*{b}={ab}>>{ab} books.\n"
            f"She has {ab} - {c} = <<{ab}-{c}={left}>>{left} books left.\n#### {left}"
        )


def test_a_discount_is_computed_from_its_percentage_and_money_keeps_its_cents() -> None:
    for row in some(LAMP):
        price, percent, count = numbers(row["question"])
        assert final(row) == price * (100 - percent) / 100 * count
        assert f"{100 - percent}% of the price" in row["answer"]
        assert re.search(r"cost \$\d+\.\d\d x", row["answer"])


def test_days_of_a_week_stay_and_an_equation_without_a_mark_is_computed_too() -> None:
    for row in some(RUN):
        (miles,) = numbers(row["question"])
        assert "<<7*2=14>>" in row["answer"]
        assert f"14*{miles}={14 * miles} miles" in row["answer"]


def test_a_number_that_is_a_result_as_well_follows_it() -> None:
    made = some(PEARS)
    for row in made:
        pears, green, yellow, cheap, dear, again = numbers(row["question"])
        assert pears == green + yellow == again
        assert final(row) == green * cheap + yellow * dear
    assert len({numbers(row["question"])[0] for row in made}) > 1


def test_a_number_that_may_be_a_constant_stays() -> None:
    question = "Tom eats 7 plums a day. How many plums does he eat in a week, if he eats 10 more on its last day?"
    answer = "He eats 7*7=<<7*7=49>>49 plums.\nWith 10 more he eats 49+10=<<49+10=59>>59 plums.\n#### 59"
    assert {numbers(row["question"])[0] for row in some({"question": question, "answer": answer})} == {7}


def test_a_number_of_the_question_that_is_the_sum_of_others_stays_their_sum() -> None:
    question = "The 50 men weigh 160 pounds each, the 30 women 60 pounds each. What do all 80 weigh on average?"
    answer = (
        "The men weigh 50*160=<<50*160=8000>>8000 pounds.\nThe women weigh 30*60=<<30*60=1800>>1800 pounds.\n"
        "All weigh 8000+1800=<<8000+1800=9800>>9800 pounds.\nThat is 9800/80=<<9800/80=122.5>>122.5 each.\n#### 122.5"
    )
    for row in some({"question": question, "answer": answer}):
        men, _, women, _, all_of_them = numbers(row["question"])
        assert all_of_them == men + women


def test_a_result_stays_below_what_it_was_below() -> None:
    question = (
        "40 guests come to a party with 25 cups. A half of the guests drink a cup each, and each of them pays $3."
    )
    answer = "Of them 40/2=<<40/2=20>>20 guests drink.\nThey pay 20*3=$<<20*3=60>>60.\n#### 60"
    for row in some({"question": question, "answer": answer}):
        guests, cups, _ = numbers(row["question"])
        assert guests / 2 < cups


def test_a_number_that_is_also_said_in_words_stays() -> None:
    question = "Ann has 4 cats and buys 30 cans. How many cans are left after each of the cats eats 5?"
    answer = "The four cats eat 4*5=<<4*5=20>>20 cans.\nThen 30-20=<<30-20=10>>10 are left.\n#### 10"
    made = some({"question": question, "answer": answer})
    assert {numbers(row["question"])[0] for row in made} == {4}


@pytest.mark.parametrize(
    ("question", "answer", "reason"),
    [
        ("He has 3 of 5 pens.", "He lacks 2.\n#### 2", Reason.NO_MARK),
        ("He has 3 of 5 pens.", "He lacks 5-3=<<5-3=2>>2.", Reason.NO_MARK),
        ("He has 3 of 5 pens.", "He lacks <<5 minus 3=2>>2.\n#### 2", Reason.UNREADABLE),
        ("He has 3 of 5 pens.", "That is <<5/0=2>>2.\n#### 2", Reason.UNREADABLE),
        ("He cuts 10 feet in 3.", "Each is <<10/3=3.33>>3.33.\n#### 3.33", Reason.INEXACT),
        ("He has 9 pens and 4 more.", "He has <<9+4=13>>130.\n#### 13", Reason.INEXACT),
        ("He has 9 pens and 40 less.", "He has 9-40=<<9-40=-31>>-31.\n#### -31", Reason.INEXACT),
        ("He has 9 pens in 8 bags.", "He has 9*8*13=<<9*8*13=936>>936.\n#### 936", Reason.OPERAND),
        ("He has 9 pens in 8 bags.", "In 2019 it was 9*8=<<9*8=72>>72.\n#### 72", Reason.NUMERAL),
        ("He has 9 pens in 8 bags.", "He has 9*8=<<9*8=72>>72.\n#### 9", Reason.FINAL),
        ("He has 9 pens in 8 bags.", "x = 9*8 = <<9*8=72>>72\n#### 72", Reason.ALGEBRA),
        ("He has 2 pens.", "Twice as many are 2*2=<<2*2=4>>4.\n#### 4", Reason.NOTHING_FREE),
        (
            "Of 30 pens half are red. 5 of these are lost.",
            "Red are 30/2=<<30/2=15>>15.\nLeft are 15-5=<<5+5=10>>10.\n#### 10",
            Reason.EQUATION,
        ),
        ("It is 2:3, with 40 red and 60 blue.", "All are 40+60=<<40+60=100>>100\n#### 100", Reason.RATIO),
    ],
)
def test_what_cannot_be_traced_is_refused_by_reason(question: str, answer: str, reason: Reason) -> None:
    with pytest.raises(Refused) as refused:
        some({"question": question, "answer": answer})
    assert refused.value.reason is reason


STORIES: dict[str, tuple[str, Callable[..., str], Callable[..., Fraction]]] = {
    "left": (
        "There are {a} boxes of {b} pens each. {c} pens are lost. How many are left?",
        lambda a, b, c: (
            f"There were {a}*{b}=<<{a}*{b}={a * b}>>{a * b}.\nNow {a * b}-{c}=<<{a * b}-{c}={a * b - c}>>"
            f"{a * b - c} are left.\n#### {a * b - c}"
        ),
        lambda a, b, c: Fraction(a * b - c),
    ),
    "sum": (
        "Al has {a} coins, Bo has {b} coins more than Al, and Cy has {c} coins. How many have they together?",
        lambda a, b, c: (
            f"Bo has {a}+{b}=<<{a}+{b}={a + b}>>{a + b} coins.\nTogether they have {a}+{a + b}+{c}="
            f"<<{a}+{a + b}+{c}={2 * a + b + c}>>{2 * a + b + c} coins.\n#### {2 * a + b + c}"
        ),
        lambda a, b, c: Fraction(2 * a + b + c),
    ),
    "shared": (
        "{a} bags hold {b} nuts each. {c} squirrels share the nuts. How many nuts does each of them get?",
        lambda a, b, c: (
            f"There are {a * c} x {b} = <<{a * c}*{b}={a * b * c}>>{a * b * c} nuts.\nEach gets {a * b * c} / "
            f"{c} = <<{a * b * c}/{c}={a * b}>>{a * b} nuts.\n#### {a * b}"
        ),
        lambda a, b, c: Fraction(a * b, c),
    ),
}


@pytest.mark.parametrize("story", STORIES)
@given(a=st.integers(2, 40), b=st.integers(2, 40), c=st.integers(2, 40), seed=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_whatever_the_numbers_the_answer_follows_from_the_question(
    story: str, a: int, b: int, c: int, seed: int
) -> None:
    question, answer, solve = STORIES[story]
    bags = a * c if story == "shared" else a
    row = {"question": question.format(a=bags, b=b, c=c), "answer": answer(a, b, c)}
    try:
        template = trace(**row)
    except Refused:
        return
    assert template.filled(template.values({})) == row
    for values in drawn(template, 4, random.Random(seed)):
        variant = template.filled(values)
        assert final(variant) == solve(*numbers(variant["question"]))


@given(st.integers(0, 10**7), st.integers(0, 3), st.booleans())
def test_a_numeral_is_written_as_it_was(digits: int, places: int, grouped: bool) -> None:
    whole = f"{digits:,}" if grouped else str(digits)
    numeral = f"{whole}.{digits % 10**places:0{places}d}" if places else whole
    form = Form.of(numeral)
    assert form.fits(exact(numeral))
    assert form.write(exact(numeral)) == numeral


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("two hundred and fifty", [250]),
        ("Twenty-five of sixty four", [25, 64]),
        ("one fifty-dollar bill", [1, 50]),
        ("six million", [6_000_000]),
        ("someone heightened it often", []),
    ],
)
def test_numbers_in_words(text: str, values: list[int]) -> None:
    assert [words_value(found.group()) for found in IN_WORDS.finditer(text)] == values


def test_drills_are_right_and_have_the_operators_of_the_solutions() -> None:
    answers = [row["answer"] for row in (BOOKS, RUN)]
    made = list(drills(answers, 50, seed=3))
    assert made == list(drills(answers, 50, seed=3)) != list(drills(answers, 50, seed=4))
    assert len(made) == 50
    for row in made:
        expression = row["question"].removesuffix(" = ?")
        tree, values, _ = parse(expression)
        result = compute(tree, values)
        assert row["answer"] == f"{expression} = <<{expression}={result}>>{result}\n#### {result}"
    assert {operator for row in made for operator in "+-*/" if operator in row["question"]} == {"-", "*"}


def test_expressions_that_cannot_have_other_numbers_give_no_drills() -> None:
    answers = ["<<1+1=2>>2 <<4=4>>4 <<3/0=1>>1 <<2+2=x>>x <<2+2=5>>5 <<5-x=1>>1 <<1*100=100>>100"]
    assert not list(drills(answers, 5, seed=0))


def write(file: Path, rows: list[Row]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_program_writes_rows_of_the_same_form_and_says_what_it_left_out(tmp_path: Path) -> None:
    untraced = {"question": "How old is the cook?", "answer": "Old.\n#### 5"}
    source, target = write(tmp_path / "train.jsonl", [*ROWS, untraced]), tmp_path / "variants.jsonl"
    command = [sys.executable, str(ROOT / "examples/gsm8k/variants.py"), str(source), str(target), "--each", "3"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    made = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(made) == 3 * len(ROWS)
    assert all(list(row) == ["question", "answer"] for row in made)
    assert "1 left out: no marks, or no final number" in ended.stdout
    assert "4 varied (80%)" in ended.stdout


def typed(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["variants.py", *map(str, words)])
    program.main()


def test_a_seed_gives_the_same_rows_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "train.jsonl", ROWS)
    for name, seed in (("one", 1), ("again", 1), ("two", 2)):
        typed(monkeypatch, source, tmp_path / name, "--seed", seed)
    assert (tmp_path / "one").read_text() == (tmp_path / "again").read_text() != (tmp_path / "two").read_text()


def test_the_program_writes_drills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, write(tmp_path / "train.jsonl", ROWS), tmp_path / "drills.jsonl", "--drills", 7)
    assert len((tmp_path / "drills.jsonl").read_text().splitlines()) == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "train.jsonl cannot be read: No such file or directory"),
        ("", "train.jsonl is empty"),
        ("{\n", "line 1 of .*train.jsonl is not JSON"),
        ('{"question": "a", "answer": "b"}\n{"prompt": 1}\n', "line 2 of .*train.jsonl is no row with a question"),
        ('{"question": "a", "answer": "b"}\n', "nothing can be made of .*train.jsonl"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, message: str
) -> None:
    source = tmp_path / "train.jsonl"
    if content is not None:
        source.write_text(content)
    with pytest.raises(SystemExit, match=message):
        typed(monkeypatch, source, tmp_path / "out.jsonl")
    assert not list(tmp_path.glob("out*"))
