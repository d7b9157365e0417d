"""The configuration as text: YAML, read exactly, and written with a comment that says where each value came from.

A comment is whatever stands behind a value on the line where the YAML ends, as the parser sees it: neither a `#` inside
a text nor a text of many lines can be taken for one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel

Origins = dict[str, str]
"""Dotted key → the file or the command line that set it. What is not in it is a default."""

_DEFAULT = "default"
_EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
"""YAML 1.1 takes 3e-4 for a text, which nobody means; in quotes it is one."""
_BREAKS = set("\n\x85\u2028\u2029")


class _Loader(yaml.SafeLoader):
    pass


class _Dumper(yaml.SafeDumper):
    pass


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """On one line, whatever it holds."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if _BREAKS & set(text) else None)


for _kind in (_Loader, _Dumper):  # both: a text that looks like a number is written in quotes
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
_Dumper.add_representer(str, _represent_text)


def parse(text: str) -> Any:
    return yaml.load(text, _Loader)


def dump(config: BaseModel, origins: Origins) -> str:
    """YAML of every value, each with a comment that says where it came from."""
    return "\n".join(_lines(config.model_dump(mode="json"), origins)) + "\n"


def _lines(values: Mapping[str, Any], origins: Origins, prefix: str = "", depth: int = 0) -> Iterator[str]:
    for key, value in values.items():
        dotted, begins = f"{prefix}{key}", f"{'  ' * depth}{_on_one_line(key)}:"
        if isinstance(value, Mapping) and value:
            yield begins
            yield from _lines(value, origins, dotted + ".", depth + 1)
        else:
            yield f"{begins} {_on_one_line(value)}  # {_comment(origins.get(dotted))}"


def _on_one_line(value: Any) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n...\n").strip()


def _comment(origin: str | None) -> str:
    if origin is None:
        return _DEFAULT
    plain = origin.isprintable() and origin == origin.strip() != "" and not origin.startswith('"')
    return origin if plain and origin != _DEFAULT else json.dumps(origin)


def origins_in(dumped: str) -> Origins:
    """Where the values of a dumped configuration came from, but for defaults."""
    return {key: origin for key, origin in comments_in(dumped).items() if origin is not None}


def comments_in(dumped: str) -> dict[str, str | None]:
    """What the comments of a dumped configuration say: an origin, or None for a default. A value without a comment was
    written by hand, and is not among them."""
    lines = re.split("\r\n|[\r\n\x85\u2028\u2029]", dumped)  # as the parser counts them
    tree = yaml.compose(dumped, _Loader)
    found = _comments(tree, lines) if isinstance(tree, yaml.MappingNode) else ()
    return {key: _origin(comment) for key, comment in found}


def _origin(comment: str) -> str | None:
    if comment == _DEFAULT:
        return None
    return str(json.loads(comment)) if comment.startswith('"') else comment


def _comments(tree: yaml.MappingNode, lines: list[str], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.value:
        dotted = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _comments(value, lines, dotted + ".")
            continue
        _, mark, comment = lines[value.end_mark.line][value.end_mark.column :].partition("# ")
        if mark and comment.strip():
            yield dotted, comment.strip()
