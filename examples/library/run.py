"""A rollout and a reward of your own: say a letter, then say it again when asked. See README.md."""

import sys
from pathlib import Path

import freerun
from freerun.models.tiny import make_model


class SayTwice:
    async def __call__(self, task, client):
        return await client.each_member(task, self.talk)

    async def talk(self, chat):
        await chat.reply(max_tokens=1)
        chat.add("?")
        await chat.reply(max_tokens=1)


def both_right(task, sample):
    said = [message["content"] for message in sample.messages if message["role"] == "assistant"]
    return said.count(task.answer) / len(said)


def letters():
    return [{"prompt": f"{letter}>", "answer": letter} for letter in "abcdef" * 20]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    make_model(folder / "model", "abcdef>?", seed=1, hidden=32)
    config = freerun.RunConfig.model_validate({
        "runs": str(folder), "model": {"path": str(folder / "model")}, "data": {"source": f"{__file__}:letters"},
        "rollout": {"max_new_tokens": 4}, "train": {"lr": 5e-3}, "control": {"steps": 30, "groups_per_step": 8},
    })  # fmt: skip
    outcome = freerun.train(config, rollout=SayTwice(), judge=both_right)
    print(f"reward {outcome.steps[0].reward_mean:.2f} -> {outcome.steps[-1].reward_mean:.2f}, {outcome.folder.report}")
