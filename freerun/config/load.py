"""A preset, a YAML file and dotted overrides into one validated tree."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from freerun.config.paths import found_beside
from freerun.config.preset import Layer, preset_layers, preset_names
from freerun.config.renamed import in_new_words
from freerun.config.text import Origins, comments_in, parse
from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.core.section import Section, by_dotted_key, with_key
from freerun.core.text import did_you_mean
from freerun.train.corrections import CORRECTIONS
from freerun.train.implied import implied

S = TypeVar("S", bound=Section)
_COMMAND_LINE, _OBJECTIVE = "command line", "train.objective"
_IMPLIED_BY = ("train.objective", "train.advantages", "train.proximal")
"""What decides which settings are implied."""


def load_config(file: Path | None, overrides: Sequence[str] = ()) -> tuple[RunConfig, Origins]:
    """The preset that any of them names first, then the file, then the overrides in order. Instead of a file, `file`
    may be a preset's name. A mistake is a ConfigError of one line."""
    given: list[Layer] = []
    if file is not None and str(file) in preset_names() and not file.exists():
        given = [({"preset": str(file)}, _COMMAND_LINE)]
    elif file is not None:
        given = [(_read_run(file), file.name)]
    return _resolved([*given, *((_parse(override), _COMMAND_LINE) for override in overrides)])


def config_of(given: RunConfig | Mapping[str, Any] | str | Path, **changes: Any) -> tuple[RunConfig, Origins]:
    """What a script calls a configuration: a file, nested keys and values, or one that is made already; `changes` are
    by key, with two underscores for a dot."""
    if isinstance(given, str | Path):
        values, origin = _read_run(Path(given)), Path(given).name
    else:
        values = given.model_dump(exclude_unset=True) if isinstance(given, RunConfig) else dict(given)
        origin = "script"
    dotted = [(with_key({}, key.replace("__", "."), value), "script") for key, value in changes.items()]
    return _resolved([*((with_key({}, key, value), origin) for key, value in values.items()), *dotted])


def _resolved(layers: Sequence[Layer]) -> tuple[RunConfig, Origins]:
    """Later ones replace what earlier ones say; each has a name for its origin. Below all of them lies the preset that
    they name."""
    values: dict[str, Any] = {}
    origins: Origins = {}
    named = [layer["preset"] for layer, _ in layers if layer.get("preset") is not None]
    for layer, origin in [*(preset_layers(named[-1]) if named else []), *layers]:
        _merge(values, layer, origins, origin)
    _refuse_unknown(values, RunConfig)
    _imply(values, origins)
    return _checked(values), origins


def load_dumped(file: Path, overrides: Sequence[str] = ()) -> tuple[RunConfig, Origins]:
    """The `config.yaml` of a run, with where each value came from in the first place, and the overrides.

    The run keeps its values, even where a default has changed since. Only if an override chooses another objective (or
    changes what an objective's implications depend on) is everything that nobody set implied anew.
    """
    values: dict[str, Any] = {}
    origins: Origins = {}
    _merge(values, _read(file), origins, file.name)
    comments = comments_in(file.read_text(encoding="utf-8"))
    told = {key: comments.get(key, origin) for key, origin in origins.items()}
    origins = {key: origin for key, origin in told.items() if origin is not None}
    before = [_value(values, key) for key in _IMPLIED_BY]
    for override in overrides:
        _merge(values, _parse(override), origins, _COMMAND_LINE)
    if origins.get("preset") == _COMMAND_LINE:
        raise ConfigError("a run keeps the settings that it began with: begin another one with that preset")
    _refuse_unknown(values, RunConfig)
    if [_value(values, key) for key in _IMPLIED_BY] != before:
        for key in [key for key, origin in origins.items() if origin == _OBJECTIVE]:
            del origins[key]
            _remove(values, key)
        _imply(values, origins)
    return _checked(values), origins


def _imply(values: dict[str, Any], origins: Origins) -> None:
    """Add what the objective implies and nobody has set."""
    given = {key: value for key, value in by_dotted_key(values) if key in origins}
    for key, value in implied(given).items():
        try:
            _refuse_unknown(with_key({}, key, value), RunConfig)
        except ConfigError as error:
            raise ConfigError(f"train.objective={given[_OBJECTIVE]} implies {key}: {error}") from None
        _merge(values, with_key({}, key, value), origins, _OBJECTIVE)


def _checked(values: dict[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_first_mistake(error)) from None


def _value(values: Mapping[str, Any], key: str) -> Any:
    """What a dotted key has, None if nothing."""
    return dict(by_dotted_key(values)).get(key)


def _remove(values: dict[str, Any], key: str) -> None:
    *sections, last = key.split(".")
    for section in sections:
        values = values[section]
    del values[last]


def load_section(name: str, kind: type[S], file: Path | None = None, overrides: Sequence[str] = ()) -> S:
    """One section of a run's file, and overrides of its keys. What else the file holds may be missing or wrong."""
    values: dict[str, Any] = {name: {}}
    content = _read_run(file) if file else {}
    preset = content.get("preset")
    for layer in [*(layer for layer, _ in (preset_layers(preset) if preset else [])), content]:
        if name in layer:
            _merge(values, {name: layer[name]}, {}, "")
    for override in overrides:
        if not override.partition("=")[0].startswith(f"{name}."):
            raise ConfigError(f"{override!r} is not {name}.KEY=VALUE")
        _merge(values, _parse(override), {}, _COMMAND_LINE)
    _refuse_unknown(values, RunConfig)
    try:
        return kind.model_validate(values[name])
    except ValidationError as error:
        raise ConfigError(f"{f'{file}: ' if file else ''}{name}.{_first_mistake(error)}") from None


def _read_run(file: Path) -> dict[str, Any]:
    """A run's file; what it names is looked for beside it first."""
    values, folder = _read(file), file.parent.absolute()
    return values if folder == Path.cwd() else found_beside(values, folder)


def _read(file: Path) -> dict[str, Any]:
    try:
        values = parse(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not YAML: byte {error.start} is not UTF-8") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    except FileNotFoundError:
        is_file = file.suffix in (".yaml", ".yml")
        near = "" if is_file else did_you_mean(str(file), preset_names(), lambda name: f"the preset {name}")
        raise ConfigError(f"there is no file {file}{near}") from None
    except IsADirectoryError:
        inside = [one.name for one in sorted(file.glob("*.y*ml"))]
        hint = f", such as {file / inside[0]}" if inside else ""
        raise ConfigError(f"{file} is a folder: give a run's YAML file{hint}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if values is None:
        raise ConfigError(f"{file} is empty: it should hold keys and values, such as 'model: {{path: …}}'")
    if not isinstance(values, dict):
        raise ConfigError(f"{file} should hold keys and values, such as 'model: {{path: …}}'")
    return _without_empty_sections(values, RunConfig)


def _without_empty_sections(values: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """An empty section (`train:` and nothing below) is all defaults."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        field = model.model_fields.get(key)
        inner = inner_section(model, key) if field else None
        if value is None and field and isinstance(field.default, Section):
            continue
        kept[key] = _without_empty_sections(value, inner) if inner and isinstance(value, Mapping) else value
    return kept


def _parse(override: str) -> dict[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r} is not KEY=VALUE, such as train.lr=3e-4")
    try:
        value = parse(text)
    except yaml.YAMLError:
        raise ConfigError(f"{override!r}: the value is not YAML; quote it, such as {key}='\"{text}\"'") from None
    return with_key({}, key, value)


def _merge(into: dict[str, Any], values: Mapping[str, Any], origins: Origins, origin: str, prefix: str = "") -> None:
    """Whatever a value takes the place of, the origin of that goes too."""
    for key, value in values.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if not isinstance(into.get(key), dict):
                into[key] = {}
                origins.pop(dotted, None)
            _merge(into[key], value, origins, origin, dotted + ".")
        else:
            into[key] = value
            for inner in [known for known in origins if known.startswith(dotted + ".")]:
                del origins[inner]
            origins[dotted] = origin


def _refuse_unknown(values: Mapping[str, Any], model: type[BaseModel], prefix: str = "") -> None:
    for key, value in values.items():
        inner = inner_section(model, key) if key in model.model_fields else None
        is_old = key not in model.model_fields or (inner and not isinstance(value, Mapping))
        if is_old and (line := in_new_words(f"{prefix}{key}")):
            raise ConfigError(line)
        if key not in model.model_fields:
            raise ConfigError(f"unknown key {prefix}{key}{_nearest(key, prefix, model)}")
        if inner and isinstance(value, Mapping):
            _refuse_unknown(value, inner, f"{prefix}{key}.")


def _nearest(key: str, prefix: str, model: type[BaseModel]) -> str:
    """The nearest name in the same section, else anywhere in the tree, else what the section has."""
    anywhere = {dotted.rsplit(".", 1)[-1]: dotted for dotted, _, _ in knobs()}
    return (
        did_you_mean(str(key), model.model_fields, lambda near: prefix + near)
        or did_you_mean(str(key), anywhere, anywhere.__getitem__, similarity=0.75)
        or f"; {prefix.rstrip('.') or 'the top level'} has {', '.join(model.model_fields)}"
    )


def inner_section(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The section behind a key, optional ones included."""
    annotation = model.model_fields[key].annotation
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def knobs(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Every knob: its dotted key, its meaning, its default (`...` where there is none).

    The options of what is chosen by name for a list follow that list, as `train.corrections[icepop].low`.
    """
    for key, field in model.model_fields.items():
        inner = inner_section(model, key)
        if inner and key != "held_out":
            yield from knobs(inner, f"{prefix}{key}.")
        elif not _is_tag(field):
            default = ... if field.is_required() else field.get_default()
            yield f"{prefix}{key}", field.description or "", default
        for name, options in _chosen_by_name(field).items():
            yield from knobs(options, f"{prefix}{key}[{name}].")


def _is_tag(field: FieldInfo) -> bool:
    """Whether it can only have the value that names its section."""
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1


def _chosen_by_name(field: FieldInfo) -> dict[str, type[Section]]:
    return (
        CORRECTIONS if isinstance(field.default, tuple) and any(isinstance(d, Section) for d in field.default) else {}
    )


def _first_mistake(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{where} is missing; set it in the file, or as {where}=VALUE on the command line"
    more = f" (and {len(error.errors()) - 1} more)" if len(error.errors()) > 1 else ""
    found = (
        "" if isinstance(first["input"], dict) else f" (it is {first['input']!r})"
    )  # of a section, all of it is no help
    return f"{where}: {message}{found}{more}" if where else message
