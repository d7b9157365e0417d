"""Responses that were given, so that later ones can go on from them. In memory, and the oldest are forgotten."""

from collections import OrderedDict
from dataclasses import dataclass

from freerun.core.task import Message
from freerun.engines.dialects.base import ChatRequest, Json, Said
from freerun.engines.dialects.responses import ResponsesBody, continued, without_instructions
from freerun.engines.refused import Refused

MOST_RESPONSES, MOST_CHARACTERS = 4096, 2**28


@dataclass(slots=True, frozen=True)
class StoredResponse:
    reply: Json
    messages: list[Message]
    """The whole conversation, with the answer and without instructions. Messages of earlier ones are shared."""

    @property
    def characters(self) -> int:
        """About how much memory it may take."""
        return sum(len(str(text)) for message in self.messages for text in message.values())


class ResponseStore:
    def __init__(self, most: int = MOST_RESPONSES, most_characters: int = MOST_CHARACTERS) -> None:
        self._most, self._most_characters = most, most_characters
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._characters = 0

    def resolve(self, request: ChatRequest) -> None:
        """Put the messages that a request goes on from before its own."""
        if request.previous is None:
            return
        earlier = self._stored.get(request.previous)
        if earlier is None:
            raise Refused(
                f"there is no response {request.previous!r} here (any more): send the whole conversation as input",
                "previous_response_id",
                "previous_response_not_found",
            )
        self._stored.move_to_end(request.previous)
        request.messages = continued(request, earlier.messages)

    def keep(self, request: ChatRequest, said: Said, reply: Json) -> None:
        """A response that has ended, unless its request said not to. `request` has been resolved."""
        if isinstance(request.body, ResponsesBody) and request.body.store:
            stored = StoredResponse(reply, [*without_instructions(request), said.message()])
            self._stored[reply["id"]] = stored
            self._characters += stored.characters
            while len(self._stored) > self._most or (self._characters > self._most_characters and self._stored):
                self._characters -= self._stored.popitem(last=False)[1].characters

    def get(self, id: str) -> StoredResponse:
        if id not in self._stored:
            raise Refused(f"there is no response {id!r} here (any more)", "response_id", "not_found", 404)
        return self._stored[id]

    def delete(self, id: str) -> None:
        self._characters -= self.get(id).characters
        del self._stored[id]
