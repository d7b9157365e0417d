"""Responses that were given, so that later ones can go on from them. In memory, and the oldest are forgotten."""

from collections import OrderedDict
from dataclasses import dataclass

from freerun.core.task import Message
from freerun.engines.dialects.base import ChatRequest, Json, Said
from freerun.engines.dialects.responses import ResponsesBody, continued, without_instructions
from freerun.engines.refused import Refused

MOST_RESPONSES = 4096


@dataclass(slots=True, frozen=True)
class StoredResponse:
    reply: Json
    messages: list[Message]
    """The whole conversation, with the answer and without instructions. Messages of earlier ones are shared."""


class ResponseStore:
    def __init__(self, most: int = MOST_RESPONSES) -> None:
        self._most = most
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

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
            self._stored[reply["id"]] = StoredResponse(reply, [*without_instructions(request), said.message()])
            while len(self._stored) > self._most:
                self._stored.popitem(last=False)

    def get(self, id: str) -> StoredResponse:
        if id not in self._stored:
            raise Refused(f"there is no response {id!r} here (any more)", "response_id", "not_found", 404)
        return self._stored[id]

    def delete(self, id: str) -> None:
        self.get(id)
        del self._stored[id]
