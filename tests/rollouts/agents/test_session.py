"""What an agent says through its session, over real HTTP from its own process."""

from freerun.core import Task
from freerun.rollouts.agents.pool import AgentPool
from freerun.rollouts.agents.spec import AgentResult, SessionFailure
from tests.rollouts.agents.conftest import AgentFile
from tests.rollouts.agents.gateway import served

TASK = Task("t", "what?", [1], "5")
SOURCE = """
    kept = None
    async def run(task, session, what):
        global kept
        match what:
            case "rewards":
                session.reward(0.25)
                session.reward(1, response="r1")
            case "chat":
                said = await session.chat([{"role": "user", "content": task.prompt}], tools=[{"x": 1}], max_tokens=5)
                assert said == {"role": "assistant", "content": "hi"}
                assert (session.model, session.member, session.attempt) == ("policy", 3, 1)
            case "nan":
                session.reward(float("nan"))
            case "kept client":
                from openai import AsyncOpenAI
                kept = kept or AsyncOpenAI(api_key="none", base_url=session.base_url)
                said = await kept.with_options(api_key=session.api_key).chat.completions.create(
                    model=session.model, messages=[{"role": "user", "content": "x"}])
                return len(said.choices[0].message.content)
"""


async def test_rewards_belong_to_turns_and_share_a_connection(agent_file: AgentFile) -> None:
    async with served() as gateway, AgentPool(agent_file(SOURCE, what="rewards"), 1) as pool:
        for _ in range(3):
            assert await pool.run(TASK, gateway.access, 30) == AgentResult()
        said = [{"reward": 0.25, "response": None}, {"reward": 1.0, "response": "r1"}]
        assert gateway.asked == [("/KEY/v1/reward", "Bearer KEY", body) for body in said] * 3
        assert len(gateway.connections) == 1


async def test_chat_gives_the_message(agent_file: AgentFile) -> None:
    async with served() as gateway, AgentPool(agent_file(SOURCE, what="chat"), 1) as pool:
        for _ in range(3):
            assert await pool.run(TASK, gateway.access, 30) == AgentResult()
        (path, _, body), *_ = gateway.asked
        assert path == "/KEY/v1/chat/completions"
        assert body == {
            **{"model": "policy", "messages": [{"role": "user", "content": "what?"}]},
            **{"tools": [{"x": 1}], "max_tokens": 5},
        }
        assert len(gateway.connections) == 1


async def test_a_client_made_once_serves_all_sessions_of_a_worker(agent_file: AgentFile) -> None:
    async with served() as gateway, AgentPool(agent_file(SOURCE, what="kept client"), 1) as pool:
        for _ in range(3):
            assert await pool.run(TASK, gateway.access, 30) == AgentResult(2.0)
        assert len(gateway.connections) == 1


async def test_what_the_gateway_refuses_is_an_error_in_its_words(agent_file: AgentFile) -> None:
    async with served() as gateway:
        gateway.status, gateway.reply = 410, b'{"error": {"message": "the session has ended"}}'
        for what, said in (("rewards", "session.reward(0.25)"), ("chat", "session.chat")):
            async with AgentPool(agent_file(SOURCE, what=what), 1) as pool:
                result = await pool.run(TASK, gateway.access, 30)
                assert result.failure is SessionFailure.ERROR
                assert result.detail.endswith(f"{said} was refused: the session has ended")
                assert "mine.py:" in result.detail


async def test_a_gateway_that_is_gone_and_a_reward_that_is_none(agent_file: AgentFile) -> None:
    async with served() as gateway:
        pass
    for what, said in (
        ("rewards", "the session's gateway cannot be reached: ConnectionRefusedError"),
        ("chat", "the session's gateway cannot be reached: ClientConnectorError"),
        ("nan", "ValueError: session.reward was given nan, which is no finite number of 32 bits"),
    ):
        async with AgentPool(agent_file(SOURCE, what=what), 1) as pool:
            assert said in (await pool.run(TASK, gateway.access, 30)).detail
