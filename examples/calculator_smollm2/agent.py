"""An agent with a calculator for a model that was never taught to call tools: the protocol is plain text.

SmolLM2's chat template has no words for tools, so the first message says how the calculator is used and shows it once.
"""

import ast
import operator
import re

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
EXAMPLE = [
    {
        "role": "system",
        "content": "You have a calculator. To use it, answer with calc(EXPRESSION) only. You are told the result. Then "
        "answer with that number only.",
    },
    {"role": "user", "content": "State the final answer to the following arithmetic problem: 12 + 34 - 5 ="},
    {"role": "assistant", "content": "calc(12 + 34 - 5)"},
    {"role": "user", "content": "result: 41"},
    {"role": "assistant", "content": "41"},
]


async def run(task, session):
    messages = [*EXAMPLE, {"role": "user", "content": task.prompt}]
    for _ in range(3):
        said = await session.chat(messages)
        call = re.search(r"calc\((.*)\)", said["content"])
        if call is None:
            return float(last_number(said["content"]) == task.answer)
        messages += [said, {"role": "user", "content": f"result: {calculated(call[1])}"}]
    return 0.0  # it never stopped calling


def calculated(expression: str) -> str:
    try:
        return str(value_of(ast.parse(expression.strip()[:100], mode="eval").body))
    except (SyntaxError, ValueError, RecursionError):
        return "error"


def value_of(node: ast.expr) -> int:
    match node:
        case ast.Constant(int(number)):
            return number
        case ast.UnaryOp(ast.USub(), inner):
            return -value_of(inner)
        case ast.BinOp(left, operation, right) if type(operation) in OPERATIONS:
            return OPERATIONS[type(operation)](value_of(left), value_of(right))
    raise ValueError("only +, - and * of whole numbers")


def last_number(text: str) -> str:
    numbers = re.findall(r"-?\d+", text)
    return numbers[-1] if numbers else ""
