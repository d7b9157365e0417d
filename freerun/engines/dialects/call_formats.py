"""How models write calls of tools: a text that opens, what stands in it, and a text that closes.

Which one a model was taught is found in its chat template (`answer_format.py`). Each reads what stands between the two
marks, or gives None for what is no call: that stays text.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

Call = tuple[str, str]
"""A name, and arguments as a text of JSON: an object."""
Schemas = Mapping[str, Any]
"""By a tool's name: its parameters, as a JSON schema."""


class Unfinished(Exception):
    """The closing mark stands inside a string: the call goes on beyond it."""


@dataclass(slots=True, frozen=True)
class CallFormat:
    open: str
    close: str
    """Empty: the call goes on to the end of the answer. Without it, an answer's end closes a call too."""
    read: Callable[[str, Schemas], list[Call] | None]
    before_arguments: str = "{"
    """What the arguments begin with. Empty: nothing, and their first name follows at once."""
    is_bare: bool = False
    """An answer that begins with { may be a call too."""

    def body(self, text: str) -> str:
        """What comes after the opening mark, in a text that begins with it."""
        return text.removeprefix(self.open)


def _json_calls(text: str, _: Schemas) -> list[Call] | None:
    """`{"name": …, "arguments": {…}}`, a list of these, or several in a row."""
    calls: list[Call] = []
    for document in _documents(text):
        try:
            entries = msgspec.json.decode(document, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
            for entry in entries if isinstance(entries, list) else [entries]:
                if (call := _json_call(entry)) is None:
                    return None
                calls.append(call)
        except (msgspec.DecodeError, UnicodeError):
            return None
    return calls or None


def _documents(text: str) -> Iterator[str]:
    """JSON documents in a row; an empty one for what is none, which nobody reads."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at] in " \n\t\r;,":
            at += 1
            continue
        try:
            _, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated string"):
                raise Unfinished from None
            end = at
        except (ValueError, RecursionError):  # numbers of thousands of digits, lists within lists within lists
            end = at
        yield text[at:end]
        if end == at:
            return
        at = end


def _json_call(entry: Any) -> Call | None:
    fields = msgspec.json.decode(entry, type=dict[str, msgspec.Raw]) if isinstance(entry, msgspec.Raw) else entry
    name = fields.get("name", fields.get("tool_name"))
    arguments = fields.get("arguments", fields.get("parameters", msgspec.Raw(b"{}")))
    if name is None:
        return None
    written = msgspec.json.decode(name, type=str)
    text = bytes(arguments).decode()
    if text.startswith('"'):  # an object inside a string
        text = msgspec.json.decode(arguments, type=str)
    return (written, text) if _is_object(text) else None


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeError):
        return False


def _value(text: str, schema: Any) -> Any:
    """A value that was written without quotes: text, unless the tool wants something else."""
    if not isinstance(schema, dict) or schema.get("type") in ("string", None):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text


def _call(name: str, pairs: Sequence[tuple[str, str]], schemas: Schemas) -> Call:
    schema = schemas.get(name)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    known = properties if isinstance(properties, dict) else {}
    arguments = {key: _value(value, known.get(key)) for key, value in pairs}
    return name, json.dumps(arguments, ensure_ascii=False)


def _all_of(text: str, item: re.Pattern[str]) -> list[re.Match[str]] | None:
    """The items that the text consists of, and nothing else but space."""
    found = list(item.finditer(text))
    return found if found and not item.sub("", text).strip() else None


_FUNCTION = re.compile(r"<function=([^<>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_KEYED = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def _function_calls(text: str, schemas: Schemas) -> list[Call] | None:
    """`<function=NAME><parameter=KEY>VALUE</parameter></function>`."""
    calls = []
    for function in _all_of(text, _FUNCTION) or ():
        name, inside = function.groups()
        pairs = _all_of(inside, _PARAMETER)
        if pairs is None and inside.strip():
            return None
        calls.append(_call(name, [(pair[1], pair[2]) for pair in pairs or ()], schemas))
    return calls or None


def _keyed_call(text: str, schemas: Schemas) -> list[Call] | None:
    """`NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`."""
    name, key, rest = text.partition("<arg_key>")
    pairs = _all_of(key + rest, _KEYED)
    if not re.fullmatch(r"\s*[\w.\-]+\s*", name) or (pairs is None and rest):
        return None
    return [_call(name.strip(), [(pair[1], pair[2]) for pair in pairs or ()], schemas)]


def _named(item: re.Pattern[str]) -> Callable[[str, Schemas], list[Call] | None]:
    """Calls that are a name and an object, each group of the pattern one of these."""

    def read(text: str, _: Schemas) -> list[Call] | None:
        calls = [(found[1], found[2].strip()) for found in _all_of(text, item) or ()]
        return calls if calls and all(_is_object(arguments) for _, arguments in calls) else None

    return read


_NAMED_ARGUMENTS = _named(re.compile(r"(?:\[TOOL_CALLS\])?\s*([\w.\-]+)(?:\[CALL_ID\]\w+)?\[ARGS\](\{.*?\})(?=\s*(?:\[TOOL_CALLS\]|$))", re.DOTALL))  # fmt: skip # noqa: E501


def _mistral_calls(text: str, schemas: Schemas) -> list[Call] | None:
    """A list of JSON, or, in newer models, `NAME[ARGS]{…}`."""
    return _NAMED_ARGUMENTS(text, schemas) if "[ARGS]" in text else _json_calls(text, schemas)


def _python_calls(text: str, _: Schemas) -> list[Call] | None:
    """`[name(key='value')]`: Python's words, of which nothing is run."""
    try:
        listed = ast.parse(text.strip(), mode="eval").body
        calls = []
        for call in listed.elts if isinstance(listed, ast.List) else ():
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
                return None
            arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
            if None in arguments:  # **more
                return None
            calls.append((call.func.id, json.dumps(arguments, ensure_ascii=False, allow_nan=False)))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return calls or None


_GEMMA = re.compile(r"\s*call:([\w.\-]+)(\{.*\})\s*", re.DOTALL)


def _gemma_call(text: str, _: Schemas) -> list[Call] | None:
    """`call:NAME{key:<|"|>text<|"|>}`: names without quotes, text between marks."""
    found = _GEMMA.fullmatch(text)
    if not found:
        return None
    parts = found[2].split('<|"|>')
    plain = [re.sub(r"([{,]\s*)([\w\-]+)\s*:", r'\1"\2":', part) for part in parts[::2]]
    quoted = [json.dumps(part, ensure_ascii=False) for part in parts[1::2]]
    arguments = "".join(part for pair in zip(plain, [*quoted, ""], strict=False) for part in pair)
    return [(found[1], arguments)] if len(parts) % 2 and _is_object(arguments) else None


_FENCED = re.compile(
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>([\w.\-]+)\s*```json\s*(.*?)\s*```)<｜tool▁call▁end｜>", re.DOTALL
)
_SEPARATED = re.compile(r"<｜tool▁call▁begin｜>([\w.\-]+)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
_NUMBERED = re.compile(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?([\w.\-]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
    re.DOTALL,
)

TAGGED_JSON = CallFormat("<tool_call>", "</tool_call>", _json_calls)
CALL_FORMATS = (
    TAGGED_JSON,
    CallFormat("<tool_call>", "</tool_call>", _function_calls, before_arguments="<"),
    CallFormat("<tool_call>", "</tool_call>", _keyed_call, before_arguments="<"),
    CallFormat("<|tool_call|>", "<|/tool_call|>", _json_calls),
    CallFormat("<|tool_call_start|>", "<|tool_call_end|>", _python_calls, before_arguments=""),
    CallFormat("<|tool_call>", "<tool_call|>", _gemma_call),
    CallFormat("<|START_ACTION|>", "<|END_ACTION|>", _json_calls),
    CallFormat("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _named(_FENCED)),
    CallFormat("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _named(_SEPARATED)),
    CallFormat("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", _named(_NUMBERED)),
    CallFormat("[TOOL_CALLS]", "", _mistral_calls),
    CallFormat("<|python_tag|>", "", _json_calls, is_bare=True),
)


def tagged(open: str, close: str) -> CallFormat:
    """JSON between marks that nobody else has."""
    return CallFormat(open, close, _json_calls)
