"""From a request's prompt or messages to the tokens that the model reads."""

import json
from typing import Any

from freerun.engines.dialects.bodies import Body
from freerun.engines.dialects.chat import ChatBody
from freerun.engines.embedded.openai.requests import CompletionBody
from freerun.engines.embedded.openai.tokenizer import Tokenizer
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
    texts = (one if isinstance(one, list) else _encoded(one, request, tokenizer, longest) for one in prompts)
    return [_cut(one, request) for one in texts]


def _encoded(text: str, request: CompletionBody | ChatBody, tokenizer: Tokenizer, longest: int) -> list[int]:
    """What cannot fit is refused unread: reading it might take minutes."""
    if len(text) > longest * tokenizer.longest_token:
        raise Refused(
            f"a prompt of {len(text)} characters exceeds the {longest} tokens that the model and its cache hold",
            code="context_length_exceeded",
        )
    return tokenizer.encode(text, request.add_special_tokens)


def _cut(prompt: list[int], request: Body) -> list[int]:
    """Its end, if the request has no more of it read."""
    if not prompt:
        raise Refused("the prompt is empty", "prompt")
    return prompt if request.truncate_prompt_tokens is None else prompt[-request.truncate_prompt_tokens :]


def _are_tokens(prompt: Any) -> bool:
    """Token ids; an empty list of them too, when it stands where one prompt should."""
    return isinstance(prompt, list) and all(type(token) is int for token in prompt)


def chat_prompt_of(request: ChatBody, tokenizer: Tokenizer, longest: int) -> list[int]:
    if not request.messages:
        raise Refused("messages is empty", "messages")
    messages = [_message(message) for message in request.messages]
    opens = request.add_generation_prompt
    how = {
        "tools": (request.tools or None) if request.tool_choice != "none" else None,
        "documents": request.documents,
        "add_generation_prompt": not request.continue_final_message if opens is None else opens,
        "continue_final_message": request.continue_final_message,
    }
    told = request.chat_template_kwargs or {}
    if request.reasoning_effort is not None:
        told = {"reasoning_effort": request.reasoning_effort} | told
    return _cut(_encoded(tokenizer.render(messages, how, told), request, tokenizer, longest), request)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """As templates expect it: content as text, arguments of tool calls as objects."""
    if not isinstance(message.get("role"), str):
        raise Refused("every message needs a role", "messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text_of(part) for part in content)
    elif content is not None and not isinstance(content, str):
        raise Refused("a message's content is text, or a list of text parts", "messages")
    elif content is None and message["role"] != "assistant":
        raise Refused(f"a message of {message['role']} needs content", "messages")
    message = message | {"content": content or ""}
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [_tool_call(call) for call in calls]
    return message


def _text_of(part: Any) -> str:
    if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
        raise Refused("this model reads text only: a part of a message must be {type: text, text: …}", "messages")
    text: str = part["text"]
    return text


def _tool_call(call: Any) -> Any:
    """OpenAI writes arguments as JSON inside a string; templates want the object."""
    try:
        return call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
    except (TypeError, KeyError, ValueError):
        return call
