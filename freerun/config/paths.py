"""Paths in a configuration, so that a run means the same files wherever one stands.

What a run's file names is looked for beside that file first, and then in the working folder, where whatever the command
line names is, too. What a run writes (`runs`, `weights.folder`) is in the working folder. The `config.yaml` of a run
has whole paths. Knows which keys hold paths; a text that names no file that exists is left as it was written.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from freerun.config.tree import RunConfig
from freerun.core.resolve import source_of_module
from freerun.core.section import by_dotted_key, with_key
from freerun.rewards.judges import MODELS

_FILES = ("model.path", "train.teacher", "cluster.key_file", "engine.python")
_SOURCES = ("data.source", "held_out.source")
_WRITTEN = ("runs", "weights.folder")
_NAMED = ("rollout.agent", "rollout.kind", "train.objective", "observers", "reward.judge")
"""FILE.py:NAME, alone or as the name of one with options, or a list of such."""
_SCRIPTS = (".py", ".js", ".mjs", ".ts", ".rb", ".sh", ".pl")
_NO_FILES = ("hub:", "reasoning-gym:", "verifiers:", "seeds:")


def found_beside(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The settings of a file in that folder, with whole paths for what lies beside it."""
    return _changed(values, lambda key, text: None if key in _WRITTEN else _file_in(folder, text), folder)


def with_whole_paths(config: RunConfig) -> RunConfig:
    """The same, with a whole path for every file that exists and every folder that will be written to."""

    def whole(key: str, text: str) -> str | None:
        return str(Path(text).expanduser().absolute()) if key in _WRITTEN else _file_in(Path.cwd(), text)

    return RunConfig.model_validate(_changed(config.model_dump(), whole, Path.cwd()))


def _changed(values: Mapping[str, Any], path_of: Callable[[str, str], str | None], folder: Path) -> dict[str, Any]:
    """`path_of` says what a text under a key is as a path, None if it is none."""
    changed = dict(values)
    held = dict(by_dotted_key(values))
    for key in (*_FILES, *_SOURCES, *_WRITTEN):
        text = held.get(key)
        if isinstance(text, str) and text and not text.startswith(_NO_FILES):
            found = path_of(key, text) or (_reference_in(folder, text) if key in _SOURCES else None)
            changed = with_key(changed, key, found or text)
    for key in _NAMED:
        if (named := _value(values, key)) is not None:
            changed = with_key(changed, key, _named_in(folder, named))
    if (judge := _value(changed, "reward.judge")) is not None:
        changed = with_key(changed, "reward.judge", _models_in(folder, judge))
    if isinstance(command := held.get("rollout.command"), list | tuple):
        changed = with_key(changed, "rollout.command", _command_in(folder, command))
    if isinstance(tools := held.get("rollout.tools"), list | tuple):
        changed = with_key(changed, "rollout.tools", [_tool_in(folder, tool) for tool in tools])
    return changed


def _value(values: Any, key: str) -> Any:
    """What a dotted key holds, be it keys and values; None if nothing."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _file_in(folder: Path, text: str) -> str | None:
    """The whole path of a file or folder that exists there; None for anything else."""
    try:
        whole = folder / Path(text).expanduser()
        return str(whole.absolute()) if whole.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long a name, a byte 0, a home that nobody knows
        return None


def _reference_in(folder: Path, text: str) -> str | None:
    """FILE.py:NAME, or MODULE:NAME of a file in the working folder, by the whole path of the file."""
    where, colon, name = text.rpartition(":")
    if not colon:
        return None
    if where.endswith(".py"):
        file = _file_in(folder, where)
    else:
        file = str(folder / f"{where}.py") if where.isidentifier() and _is_module_of(folder, where) else None
    return f"{file}:{name}" if file else None


def _is_module_of(folder: Path, module: str) -> bool:
    """Whether importing it would import the file in the folder."""
    file = folder / f"{module}.py"
    return file.is_file() and (source := source_of_module(module)) is not None and source.samefile(file)


def _named_in(folder: Path, named: Any) -> Any:
    if isinstance(named, str):
        return _reference_in(folder, named) or named
    if isinstance(named, list | tuple):
        return [_named_in(folder, one) for one in named]
    if isinstance(named, Mapping) and isinstance(named.get("name"), str):
        return {**named, "name": _named_in(folder, named["name"])}
    return named


def _models_in(folder: Path, judge: Any) -> Any:
    """Reward models by the whole paths of their folders."""
    if isinstance(judge, list | tuple):
        return [_models_in(folder, one) for one in judge]
    if isinstance(judge, Mapping) and judge.get("name") in MODELS and isinstance(path := judge.get("path"), str):
        return {**judge, "path": _file_in(folder, path) or path}
    return judge


def _command_in(folder: Path, command: list[Any] | tuple[Any, ...]) -> list[Any]:
    """A program that is named by its path, and scripts among its arguments. What else the arguments mean is the
    program's to know."""
    return [
        (_file_in(folder, part) or part)
        if isinstance(part, str) and (part.endswith(_SCRIPTS) or (place == 0 and os.sep in part))
        else part
        for place, part in enumerate(command)
    ]


def _tool_in(folder: Path, tool: Any) -> Any:
    if not isinstance(tool, Mapping):
        return tool
    changed = dict(tool)
    if isinstance(server := tool.get("mcp"), list | tuple):
        changed["mcp"] = _command_in(folder, server)
    if isinstance(function := tool.get("function"), str):
        changed["function"] = _named_in(folder, function)
    return changed
