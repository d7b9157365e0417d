"""An agent that does, at random, everything that makes a conversation more than one line: it edits, compacts, votes,
asks sub-agents, changes tools, speaks for the policy, loses patience, hangs up."""

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from freerun.bench.exact.clients import ADD, Json, openai_client, question, result_of
from freerun.bench.exact.speakers import IMPATIENT, REFUSED, SPEAKERS, Speak
from freerun.rollouts.agents.spec import Access

_OTHER = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}
_AGAIN = {"x-stainless-retry-count": "1"}


@dataclass
class Walker:
    access: Access
    dice: random.Random
    dialect: str
    fixed: int = 0
    """Answers of `policy-fixed`, which are served only."""
    talks: list[list[Json]] = field(default_factory=list)
    """Each ends with what the policy said."""
    _speak: Speak = field(init=False)

    def __post_init__(self) -> None:
        self._speak = SPEAKERS[self.dialect](self.access, self.dice)

    async def walk(self, steps: int) -> None:
        system = {"role": "system", "content": self.dice.choice(["Add.", "Be short."])}
        await self._ask([system, self._user()])
        for _ in range(steps):
            try:
                await self.dice.choice(STEPS)(self)
            except REFUSED as error:
                if "leaves no room" not in str(error):
                    raise
                self.talks = []
            if not self.talks:
                await self._ask([self._user()])

    async def go_on(self) -> None:
        await self._ask(self._gone_on())

    async def edit_a_question(self) -> None:
        talk = self._talk()
        place = self.dice.choice([at for at, message in enumerate(talk) if message["role"] == "user"])
        await self._ask([*talk[:place], self._user()])

    async def edit_an_answer(self) -> None:
        talk = self._talk()
        place = self.dice.choice([at for at, message in enumerate(talk) if message["role"] == "assistant"])
        await self._ask([*talk[:place], {"role": "assistant", "content": "Not what I said."}, self._user()])

    async def speak_for_it(self) -> None:
        talk = self._gone_on()
        for _ in range(2):
            await self._ask([*talk, {"role": "assistant", "content": f"I am {self.dice.random()}."}, self._user()])

    async def compact(self) -> None:
        await self._ask([self._talk()[0], {"role": "user", "content": f"Summary {self.dice.randrange(9)}. Go on."}])

    async def ask_a_sub_agent(self) -> None:
        await self._ask([{"role": "system", "content": f"You are {self.dice.randrange(5)}."}, self._user()])

    async def change_the_tools(self) -> None:
        tools = self.dice.choice([[ADD, _OTHER], [_OTHER], []])
        await self._ask(self._gone_on(), tools=tools)

    async def vote(self) -> None:
        asked = self._gone_on()
        await asyncio.gather(*(self._ask(asked) for _ in range(3)))

    async def go_two_ways(self) -> None:
        talk = self._gone_on()
        if talk[-1]["role"] == "user":
            await asyncio.gather(self._ask(talk), self._ask([*talk[:-1], self._user()]))

    async def ask_for_several(self) -> None:
        async with openai_client(self.access) as client:
            asked: list[Any] = self._gone_on()
            reply = await client.chat.completions.create(model="policy", messages=asked, n=3, tools=[ADD])  # type: ignore[list-item]
            for choice in reply.choices:
                self.talks.append([*asked, choice.message.model_dump(exclude_none=True)])

    async def ask_the_fixed_one(self) -> None:
        async with openai_client(self.access) as client:
            asked: list[Any] = [self._user()]
            await client.chat.completions.create(model="policy-fixed", messages=asked, temperature=0.5)
            self.fixed += 1

    async def retry(self) -> None:
        asked = self._gone_on()
        await self._ask(asked, keep=False)
        await self._ask(asked, headers=_AGAIN)

    async def lose_patience(self) -> None:
        """The client's own retries."""
        with contextlib.suppress(*IMPATIENT):
            await self._ask(self._gone_on(), timeout=self.dice.uniform(0.01, 0.5), max_retries=2)

    async def hang_up(self) -> None:
        asking = asyncio.create_task(self._ask(self._gone_on(), keep=False))
        await asyncio.wait([asking], timeout=self.dice.uniform(0, 0.2))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def be_cut(self) -> None:
        body = {"max_tokens": self.dice.randint(1, 6)}
        await self._ask(self._gone_on(), body=body)

    async def stop_at_a_text(self) -> None:
        await self._ask(self._gone_on(), body={"stop": ["e", "It is"]})

    async def must_call(self) -> None:
        await self._ask(self._gone_on(), body={"tool_choice": "required"})

    async def write_anew(self) -> None:
        """Arguments in another layout, blanks around, no thoughts: what frameworks do."""
        await self._ask([_rewritten(message) for message in self._gone_on()])

    async def reward(self) -> None:
        from freerun.rollouts.agents.http import post

        await post(f"{self.access.base_url}/reward", {"reward": self.dice.random()}, {})

    async def _ask(self, messages: list[Json], tools: list[Json] | None = None, keep: bool = True, **more: Any) -> None:
        said = await self._speak(messages, [ADD] if tools is None else tools, **more)
        if keep:
            self.talks.append([*messages, said])

    def _talk(self) -> list[Json]:
        return self.dice.choice(self.talks[-3:])

    def _user(self) -> Json:
        return {"role": "user", "content": question(self.dice)}

    def _gone_on(self) -> list[Json]:
        """A talk, with results where it ends with calls; else with another question."""
        talk = self._talk()
        calls = talk[-1].get("tool_calls") or []
        return [*talk, *([_result(call) for call in calls] or [self._user()])]


def _result(call: Json) -> Json:
    if call["function"]["name"] == "add":
        return result_of(call)
    return {"role": "tool", "tool_call_id": call["id"], "content": "Nothing."}


def _rewritten(message: Json) -> Json:
    if message["role"] != "assistant":
        return message
    content, calls = message.get("content"), message.get("tool_calls")
    rewritten: Json = {"role": "assistant", "content": f"{content}\n" if content else None}
    if calls:
        rewritten["tool_calls"] = [
            call | {"function": call["function"] | {"arguments": json.dumps(json.loads(call["function"]["arguments"]))}}
            for call in calls
        ]
    return rewritten


Step = Callable[[Walker], Awaitable[None]]
STEPS: list[Step] = [
    *(Walker.go_on, Walker.go_on, Walker.go_on, Walker.edit_a_question, Walker.edit_an_answer, Walker.speak_for_it),
    *(Walker.compact, Walker.ask_a_sub_agent, Walker.change_the_tools, Walker.vote, Walker.go_two_ways),
    *(Walker.ask_for_several, Walker.ask_the_fixed_one, Walker.retry, Walker.lose_patience, Walker.hang_up),
    *(Walker.be_cut, Walker.stop_at_a_text, Walker.must_call, Walker.write_anew, Walker.reward),
]
