"""Bare arithmetic in the manner of the solutions: "48/2 = ?" and "48/2 = <<48/2=24>>24".

Each drill is an expression of some solution with other numbers: operators and sizes are as frequent as they are there.
"""

import random
from collections.abc import Iterable, Iterator

from examples.gsm8k.arithmetic import Unreadable, compute, parse
from examples.gsm8k.drawing import drawn
from examples.gsm8k.numerals import NUMERAL, Form, Number, exact
from examples.gsm8k.quantities import Quantity
from examples.gsm8k.reading import MARK
from examples.gsm8k.template import SEPARATOR, Slot, Template


def drills(answers: Iterable[str], count: int, seed: int) -> Iterator[dict[str, str]]:
    """That many, fewer only if no expression of these solutions can have other numbers."""
    rng = random.Random(seed)
    templates = [template for answer in answers for mark in MARK.findall(answer) if (template := of_mark(mark))]
    made = 0
    while templates and made < count:
        index = rng.randrange(len(templates))
        values = next(drawn(templates[index], 1, rng), None)
        if values is None:
            templates.pop(index)
            continue
        yield templates[index].filled(values)
        made += 1


def of_mark(mark: str) -> Template | None:
    """A drill to put numbers in, or None if the mark does not compute anything exact."""
    expression, _, shown = mark.rpartition("=")
    try:
        tree, values, spans = parse(expression)
        result = compute(tree, values)
    except (Unreadable, ZeroDivisionError):
        return None
    if isinstance(tree, int) or not NUMERAL.fullmatch(shown) or exact(shown) != result or result <= 0:
        return None
    text = f"{expression} = ?{SEPARATOR}{expression} = <<{mark}>>{shown}\n#### {shown}"
    forms = [Form.of(expression[start:end]) for start, end in spans]
    starts = [0, text.index(SEPARATOR) + 1, text.index("<<") + 2]
    slots = [
        Slot(at + start, at + end, index, form)
        for at in starts
        for index, ((start, end), form) in enumerate(zip(spans, forms, strict=True))
    ]
    at = text.index(">>") - len(shown)
    for start in (at, at + len(shown) + 2, len(text) - len(shown)):
        slots.append(Slot(start, start + len(shown), len(values), Form.of(shown)))
    quantities = [quantity(value, form) for value, form in zip(values, forms, strict=True)]
    quantities.append(Quantity(result, tree=tree, places=Form.of(shown).places))
    given = [index for index in range(len(values)) if quantities[index].free]
    template = Template(text, slots, quantities, [len(values)], given, [])
    itself = template.filled(template.values({}))["answer"] == text.partition(SEPARATOR)[2]
    return template if given and itself else None


def quantity(value: Number, form: Form) -> Quantity:
    """1 and 100 are rarely a number of the story."""
    return Quantity(value, free=value not in (0, 1, 100), places=form.places)
