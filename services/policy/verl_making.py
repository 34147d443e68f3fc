"""Makes a policy of ours from a file that was written for verl: its class, the settings of its constructor, its process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from bus.errors import ConfigError, PolicyFailed
from bus.events import Value
from policies.registry import nearest
from services.policy.verl import ONLY_HYBRID, VerlPolicy, start
from services.policy.verl_calls import Made, VerlCalls

USUAL = {"deactivate_ratio": 0.3}
"""What verl passes to a constructor that has no default for it."""


def make_verl_policy(name: str, params: Mapping[str, Value], source: str) -> VerlPolicy:
    """The policy `path/file.py:ClassName` with these arguments for its constructor. `source`: the file's text.

    As in verl, `only_hybrid` is what the run's replicas say, where the constructor takes it and it is not set here. Raises ConfigError.
    """
    try:
        process = start(name, source)
        settings = settings_of(name, process.arguments, params)
        tried = {key: False if value is None and key == ONLY_HYBRID else value for key, value in settings.items()}
        VerlCalls(process).made(Made(tuple(tried.items()), 1, 1, only_hybrid=tried.get(ONLY_HYBRID) is True))
    except PolicyFailed as error:
        raise ConfigError(f"policy {name}: {error}") from error
    policy = VerlPolicy(name, source, settings)
    policy.keep(process)
    return policy


def settings_of(name: str, arguments: Mapping[str, tuple[bool, object]], params: Mapping[str, Value]) -> dict[str, Value]:
    """The settings that are recorded: those given, and the constructor's plain defaults. `only_hybrid: None` is: as the replicas say."""
    known = tuple(argument for argument in arguments if argument != "**")
    for key in params:
        if key not in known and "**" not in arguments:
            guess = f"did you mean {nearest(key, known)!r}? It takes {', '.join(known)}" if known else "it takes none"
            raise ConfigError(f"policy {name} has no setting {key!r}: {guess}")
    settings: dict[str, Value] = {}
    for key in known:
        has_default, default = arguments[key]
        if key in params:
            settings[key] = params[key]
        elif key == ONLY_HYBRID:
            settings[key] = None
        elif not has_default:
            if key not in USUAL:
                raise ConfigError(f"policy {name}: its constructor needs {key}: set it among the policy's settings")
            settings[key] = USUAL[key]
        elif default is not None:
            settings[key] = cast(Value, default)
    return settings | {key: value for key, value in params.items() if key not in known}
