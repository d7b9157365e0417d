"""From a request's prompt or messages to the tokens that the model reads."""

from dataclasses import dataclass
from typing import Any

from freerun.engines.dialects.answers import AnswerReading
from freerun.engines.dialects.base import ChatRequest
from freerun.engines.dialects.bodies import Body
from freerun.engines.dialects.chat import ChatBody
from freerun.engines.dialects.conversation import for_template
from freerun.engines.embedded.serving.completions import CompletionBody
from freerun.engines.embedded.serving.tokenizer import Tokenizer
from freerun.engines.extras import MOST_ANSWERS
from freerun.engines.refused import Refused


def prompts_of(request: CompletionBody, tokenizer: Tokenizer, longest: int) -> list[list[int]]:
    """`longest` is how many tokens the model and its cache hold."""
    prompt = request.prompt
    prompts = [prompt] if isinstance(prompt, str) or _are_tokens(prompt) else prompt
    if len(prompts) * request.n > MOST_ANSWERS:
        raise Refused(f"{len(prompts)} prompts with n={request.n} are more than {MOST_ANSWERS} answers", "prompt")
    if not all(isinstance(one, str) or _are_tokens(one) for one in prompts):
        raise Refused("prompt must be text, a list of texts, token ids, or a list of lists of token ids", "prompt")
    if not prompts or not all(prompts):
        raise Refused("the prompt is empty", "prompt")
    special = request.add_special_tokens
    texts = (one if isinstance(one, list) else _encoded(one, special, tokenizer, longest) for one in prompts)
    return [_cut(one, request) for one in texts]


def _encoded(text: str, special: bool, tokenizer: Tokenizer, longest: int) -> list[int]:
    """What cannot fit is refused unread: reading it might take minutes."""
    if len(text) > longest * tokenizer.longest_token:
        raise Refused(
            f"a prompt of {len(text)} characters exceeds the {longest} tokens that the model and its cache hold",
            code="context_length_exceeded",
        )
    return tokenizer.encode(text, special)


def _cut(prompt: list[int], request: Body) -> list[int]:
    """Its end, if the request has no more of it read."""
    if not prompt:
        raise Refused("the prompt is empty", "prompt")
    return prompt if request.truncate_prompt_tokens is None else prompt[-request.truncate_prompt_tokens :]


def _are_tokens(prompt: Any) -> bool:
    """Token ids; an empty list of them too, when it stands where one prompt should."""
    return isinstance(prompt, list) and all(type(token) is int for token in prompt)


@dataclass(slots=True, frozen=True)
class ChatPrompt:
    tokens: list[int]
    is_thinking: bool
    """The template has begun the model's thoughts."""
    begun: str
    """What it holds of the answer: a call that must be made."""


def chat_prompt_of(request: ChatRequest, tokenizer: Tokenizer, reading: AnswerReading, longest: int) -> ChatPrompt:
    body = request.body
    assert isinstance(body, Body)
    messages = for_template(request.messages, reading.format.arguments_as_text)
    text = tokenizer.render(messages, _how(request), request.template_options)
    is_thinking = reading.is_thinking(text)
    begun = reading.opening(request, is_thinking)
    special = isinstance(body, ChatBody) and body.add_special_tokens
    return ChatPrompt(_cut(_encoded(text + begun, special, tokenizer, longest), body), is_thinking, begun)


def _how(request: ChatRequest) -> dict[str, Any]:
    """What the tokenizer is told."""
    body = request.body
    opens = body.add_generation_prompt if isinstance(body, ChatBody) else None
    return {
        "tools": request.offered_tools or None,
        "documents": body.documents if isinstance(body, ChatBody) else None,
        "add_generation_prompt": not request.continues if opens is None else opens,
        "continue_final_message": request.continues,
    }
