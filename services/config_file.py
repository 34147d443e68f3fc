"""From a YAML file and `--set a.b=c` to a `RunConfig`, and from pydantic's complaints to sentences that name the setting and the limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import cast

import yaml
from pydantic import BaseModel, ValidationError

from bus.errors import ConfigError
from policies.registry import nearest
from services.config import RunConfig

MAX_COMPLAINTS = 5
"""Mistakes told at once."""

_LIMITS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "below"),
}
OTHER_NAMES = {
    "learning_rate": "actor.lr",
    "batch_size": "async_training.ppo_mini_batch_size",
    "num_generations": "rollout.n",
    "max_completion_length": "rollout.max_response_length",
    "max_new_tokens": "rollout.max_response_length",
    "max_tokens": "rollout.max_response_length",
    "beta": "actor.kl_loss_coef",
    "epsilon": "actor.clip_low",
    "epsilon_high": "actor.clip_high",
    "max_steps": "async_training.total_steps",
}
"""What settings of ours are called elsewhere."""
_LEAVES = ("str", "int", "float", "bool")
"""What pydantic calls the members of `Value`."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise ConfigError(f"line {key_node.start_mark.line + 1}: {key!r} is set twice")
            seen.add(key)
        return cast("dict[object, object]", super().construct_mapping(node, deep))


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a file and applies overrides of the form `section.name=value`, the value in YAML. Raises ConfigError."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8: {error}") from error
    data = parse_value(text, str(path))
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds {type(data).__name__}, not sections with settings")
    for override in overrides:
        _override(data, override)
    return make_config(data, str(path))


def overridden(config: RunConfig, overrides: Sequence[str], where: str) -> RunConfig:
    """A configuration with some settings changed, as `load_config` does it. Raises ConfigError."""
    if not overrides:
        return config
    data = cast("dict[object, object]", config.resolved())
    for override in overrides:
        _override(data, override)
    return make_config(cast("dict[str, object]", data), where)


def make_config(data: Mapping[str, object], where: str) -> RunConfig:
    """Validates plain data; `where` says in messages what it was read from. Raises ConfigError."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        complaints = list(dict.fromkeys(_complaints(error)))
        shown = complaints[:MAX_COMPLAINTS]
        if len(complaints) > len(shown):
            shown.append(f"and {len(complaints) - len(shown)} more")
        raise ConfigError("\n".join(f"{where}: {complaint}" for complaint in shown)) from error


def parse_value(text: str, where: str) -> object:
    """YAML as plain data; `where` says in messages what it was read from. Raises ConfigError."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is no YAML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}, {error}") from error


def _override(data: dict[object, object], override: str) -> None:
    path, equals, value = override.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set {override}: it must be of the form section.name=value")
    place = data
    for index, name in enumerate(names[:-1]):
        inner = place.setdefault(name, {})
        if inner is None:
            inner = place[name] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override}: {'.'.join(names[: index + 1])} is {inner!r}, it has no settings of its own")
        place = inner
    place[names[-1]] = parse_value(value, f"--set {override}")


def _complaints(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        where, value, kind = problem["loc"], problem["input"], problem["type"]
        context = problem.get("ctx", {})
        name = ".".join(str(part) for part in where) or "the configuration"
        if kind == "extra_forbidden":
            yield unknown_setting(where)
        elif kind in _LIMITS:
            key, words = _LIMITS[kind]
            yield f"{name} is {value!r}, it must be {words} {context[key]}"
        elif kind == "literal_error":
            yield f"{name} is {value!r}, it must be {context['expected']}"
        elif kind == "missing":
            yield f"{name} is needed"
        elif kind == "value_error":
            message = str(context["error"])
            yield message if not where or message.startswith(name) else f"{name}: {message}"
        elif kind in ("model_type", "dict_type"):
            yield f"{name} is {value!r}, it must be a section with settings of its own"
        elif where[-1:] and where[-1] in _LEAVES:
            yield f"{name.rpartition('.')[0]} is {value!r}, it must be a word, a number, true, false or null"
        else:
            yield f"{name} is {value!r}: {problem['msg']}"


def unknown_setting(where: Sequence[str | int]) -> str:
    """Names the setting nearest to an unknown one: of exactly this name elsewhere, of this name with others, or in its own section."""
    *section, name = (str(part) for part in where)
    known = tuple(_model_at(section).model_fields)
    elsewhere = [path for path in all_settings() if path.split(".")[-1] == name]
    elsewhere += [ours for theirs, ours in OTHER_NAMES.items() if theirs == name]
    similar = get_close_matches(name, known, n=1) or [nearest(name, known)]
    guess = elsewhere[0] if elsewhere else ".".join([*section, similar[0]])
    return f"{'.'.join([*section, name])} is no setting: did you mean {guess}?"


def _model_at(section: Sequence[str]) -> type[BaseModel]:
    model: type[BaseModel] = RunConfig
    for name in section:
        inner = _section(model, name)
        if inner is None:
            break
        model = inner
    return model


def all_settings(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Every setting's full name, without those that are sections."""
    for name in model.model_fields:
        inner = _section(model, name)
        if inner is None:
            yield prefix + name
        else:
            yield from all_settings(inner, f"{prefix}{name}.")


def _section(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The model of a setting that is a section itself."""
    field = model.model_fields.get(name)
    kind = field.annotation if field is not None else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
