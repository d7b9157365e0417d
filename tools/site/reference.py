"""The pages of the reference, made from the code when the site is built: knobs, commands, metrics, the run's folder.

Each page is Markdown under its path in the site. Nothing here is written by hand that the code knows.
"""

import inspect
import math
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from freerun.cli.main import app
from freerun.config.load import inner_section, knobs
from freerun.config.tree import RunConfig
from freerun.core.metrics import METRICS, SECTIONS, Metric
from freerun.core.section import Section
from freerun.observe.folder import RunFolder
from freerun.train.corrections import CORRECTIONS

Pages = dict[str, str]
"""Markdown by path."""
Command = TyperCommand | TyperGroup
Parameter = TyperArgument | TyperOption


def pages() -> Pages:
    return {
        "reference/knobs.md": knobs_page(),
        "reference/commands.md": commands_page(),
        "reference/metrics.md": metrics_page(),
        "reference/run-folder.md": folder_page(),
    }


# Knobs


def knobs_page() -> str:
    parts = [
        "# Knobs\n",
        "Every setting of a run's file, as `freerun config` prints them. A dot is a level of the file: `train.lr` is "
        "`lr` below `train`. On the command line any of them can be changed: `train.lr=1e-5`. A key that is not here "
        "is refused, with the nearest name.\n",
    ]
    section = None
    for key, help, default in sorted(knobs(), key=lambda knob: _section_of(knob[0]) != ""):
        if (first := _section_of(key)) != section:
            section = first
            parts.append(_section_head(section))
        parts.append(_knob(key, help, default))
    return "\n".join(parts)


def _section_of(key: str) -> str:
    return key.split(".")[0] if "." in key else ""


def _section_head(section: str) -> str:
    if not section:
        return "\n## The run itself { #run }\n"
    return f"\n## {section}\n\n{RunConfig.model_fields[section].description}\n"


def _knob(key: str, help: str, default: Any) -> str:
    field = field_of(key)
    facts = [f"*{type_text(field.annotation)}*"]
    facts += ["**required**" if default is ... else f"default `{_value(default)}`"]
    facts += [", ".join(f"`{limit}`" for limit in constraints(field))] if constraints(field) else []
    return f"**`{key}`**{{ #{anchor(key)} }} · {' · '.join(facts)}\n\n:   {_linked(help)}\n"


def anchor(key: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", key.lower()).strip("-")


def field_of(key: str) -> FieldInfo:
    """The field behind a dotted key, such as `train.clip.low` or `train.corrections[icepop].low`."""
    model: type[BaseModel] = RunConfig
    *sections, last = key.split(".")
    for part in sections:
        chosen = re.fullmatch(r"\w+\[(\w+)\]", part)
        inner = CORRECTIONS[chosen[1]] if chosen else inner_section(model, part)
        assert inner is not None, key
        model = inner
    return model.model_fields[last]


def constraints(field: FieldInfo) -> list[str]:
    """`≥ 1`, `< 2`, … as a reader writes them."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "length ≥", "pattern": "matches"}
    return [
        f"{sign} {value}"
        for limit in field.metadata
        for name, sign in signs.items()
        if (value := getattr(limit, name, None)) is not None
    ]


def type_text(kind: Any) -> str:
    """`int or empty`, `one of a, b`: an annotation in words."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(one) for one in inner)
    if origin is list:
        return f"list of {type_text(inner[0])}"
    if origin is tuple:
        kinds = [one for one in inner if one is not Ellipsis]
        return f"list of {type_text(kinds[0])}" if len(set(kinds)) == 1 and Ellipsis in inner else _pair(kinds)
    if origin is dict:
        return "keys and values"
    if hasattr(kind, "__metadata__"):
        return "name, or name and options"
    if isinstance(kind, type) and issubclass(kind, Section):
        return "section"
    return "name or options"


_PLAIN = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    type(None): "empty",
}


def _pair(kinds: list[Any]) -> str:
    return f"{len(kinds)} × {type_text(kinds[0])}"


def _value(default: Any) -> str:
    if default is None:
        return "empty"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float) and math.isfinite(default):
        return f"{default:g}"
    if isinstance(default, Section):
        return ", ".join(str(value) for value in default.model_dump().values())
    if isinstance(default, tuple):
        names = [getattr(one, "name", one) for one in default]
        return f"[{', '.join(str(name) for name in names)}]"
    return str(default) if default != "" else '""'


# Commands


def commands_page() -> str:
    parts = [
        "# Commands\n",
        "Every command with its arguments and options; `freerun COMMAND --help` prints the same. A user's mistake is "
        "one line and exit code 2, any other failure its cause and exit code 1. Ctrl-C ends a command in seconds.\n",
    ]
    parts += [_command(path, command) for path, command in commands()]
    return "\n".join(parts)


def commands() -> Iterator[tuple[str, Command]]:
    """Every command by what one types."""
    yield from _inside("freerun", cast(Command, typer.main.get_command(app)))


def _inside(path: str, command: Command) -> Iterator[tuple[str, Command]]:
    yield path, command
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from _inside(f"{path} {name}", cast(Command, inner))


def _command(path: str, command: Command) -> str:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in shown if isinstance(parameter, TyperArgument)]
    options = [parameter for parameter in shown if isinstance(parameter, TyperOption)]
    usage = " ".join([path, *(["COMMAND"] if isinstance(command, TyperGroup) else []), *map(_argument, arguments)])
    listed: list[Parameter] = [*arguments, *options]
    rows = [
        f"| `{_names(command, parameter)}` | {_cell(parameter.help or '')} | {_default(parameter)} |"
        for parameter in listed
    ]
    table = "\n| | | default |\n|---|---|---|\n" + "\n".join(rows) + "\n" if rows else ""
    level = "##" if path.count(" ") < 2 else "###"
    says = inspect.cleandoc(command.help or "").replace("\n", " ")
    return f"{level} {path} {{ #{path.replace(' ', '-')} }}\n\n{says}\n\n```text\n{usage}\n```\n{table}"


def _argument(argument: TyperArgument) -> str:
    name = argument.metavar or str(argument.name).upper()
    name = name.strip("[]").removesuffix("...")
    name = f"{name} …" if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def _names(command: Command, parameter: Parameter) -> str:
    if isinstance(parameter, TyperArgument):
        return _argument(parameter).strip("[]")
    takes = "" if parameter.is_flag else f" {parameter.metavar or _takes(command, str(parameter.name))}"
    return " / ".join([*parameter.opts, *parameter.secondary_opts]) + takes


def _takes(command: Command, name: str) -> str:
    """What stands for an option's value, by the type of the parameter that it becomes."""
    assert command.callback is not None
    kinds = repr(inspect.signature(command.callback).parameters[name].annotation)
    return next((word for kind, word in (("Path", "FILE"), ("int", "N"), ("float", "X")) if kind in kinds), "TEXT")


def _default(parameter: Parameter) -> str:
    if parameter.required:
        return "required"
    given = parameter.default
    nothing = given is None or callable(given) or given is False or given in ((), [])
    variable = f"`{parameter.envvar}`" if parameter.envvar else ""
    return variable if nothing else f"`{_value(given)}`"


# Metrics


def metrics_page() -> str:
    parts = [
        "# Metrics\n",
        "Every figure of a training step, under the one name that it has everywhere: in `metrics.jsonl` (a slash there "
        "is a level of the JSON), on the page, in every logger. A `*` stands for a reason, an age, or the like. Where "
        "a figure has limits, leaving them writes a note with the likely cause.\n",
    ]
    for title, section in SECTIONS.items():
        parts.append(f"## {title}\n\n{section.says}\n")
        parts += [_metric(name, metric) for name, metric in METRICS.items() if metric.section == title]
    return "\n".join(parts)


def _metric(name: str, metric: Metric) -> str:
    unit = f" · {metric.unit}" if metric.unit else ""
    lines = [f"### {metric.title} {{ #{anchor(name)} }}\n", f"`{name}`{unit}\n", f"{_linked(metric.says)}\n"]
    lines += [f"**Healthy:** {_linked(metric.healthy)}\n"] if metric.healthy else []
    if metric.cause:
        lines.append(f"**Noted** {_limits(metric)}: {_linked(metric.cause)}.\n")
    return "\n".join(lines)


def _limits(metric: Metric) -> str:
    ends = [f"below {metric.low:g}"] * math.isfinite(metric.low) + [f"above {metric.high:g}"] * math.isfinite(
        metric.high
    )
    return " or ".join(ends)


# The run's folder


def folder_page() -> str:
    rows = [f"| `{path}` | {_cell(says)} |" for path, says in folder_files()]
    says = (
        "A run leaves everything in `runs/NAME/`. A kill at any moment leaves whole lines and whole files. "
        "[Watching a run](../watching.md) says how to look at it, [Checkpoints](../checkpoints.md) how to go on."
    )
    return f"# The run's folder\n\n{says}\n\n| | |\n|---|---|\n" + "\n".join(rows) + "\n"


def folder_files() -> list[tuple[str, str]]:
    """Each file or folder of a run, and what it holds: what the properties of `RunFolder` say."""
    folder = RunFolder(Path("NAME"))
    found = inspect.getmembers_static(RunFolder, lambda member: isinstance(member, property))
    paths = [(getattr(folder, name), inspect.getdoc(member) or "") for name, member in found]
    return [(str(path.relative_to(folder.path)), says) for path, says in paths if isinstance(path, Path)]


# Text


def _linked(text: str) -> str:
    """With links instead of names of pages, and names of knobs as code."""
    known = "|".join(sorted((re.escape(key) for key, _, _ in knobs() if "." in key and "[" not in key), reverse=True))
    named = rf"(?<![\w`.])({known})(?!\w)(=[\w.+-]*\w)?"
    text = re.sub(named, lambda m: f"[`{m[0]}`](knobs.md#{anchor(m[1])})", text)
    return re.sub(r"docs/(\w+)\.md", r"[\1](../\1.md)", text)


def _cell(text: str) -> str:
    return " ".join(_linked(text).replace("|", "\\|").split())
