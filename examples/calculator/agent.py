"""An agent with a calculator, as one writes it with openai-agents. Training needs nothing of it but that it finds the
model where `session` says it is."""

import ast

from agents import Agent, AgentsException, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
CLIENT = AsyncOpenAI(api_key="each session has its own")  # the next session uses its connections again


@function_tool
def calculate(expression: str) -> str:
    """Multiply two whole numbers.

    Args:
        expression: such as 12*34.
    """
    match ast.parse(expression, mode="eval").body:
        case ast.BinOp(ast.Constant(int(left)), ast.Mult(), ast.Constant(int(right))):
            return str(left * right)
    raise ValueError("write two numbers with * between them")


async def run(task, session):
    client = CLIENT.with_options(base_url=session.base_url, api_key=session.api_key)
    agent = Agent("calculator", tools=[calculate], model=OpenAIChatCompletionsModel("policy", client))
    try:
        result = await Runner.run(agent, task.prompt, max_turns=3)
    except AgentsException:  # it called a tool that there is not, or did not stop calling
        return 0.0
    return float(result.final_output == task.answer)
