"""Policies as they are named on a benchmark's command line: a name, or path/file.py:ClassName, and settings after plus signs."""

from __future__ import annotations

import yaml

from benchmarks.queueing.jobs import Variant
from bus.errors import ConfigError
from services.policy.making import make_policy
from services.policy.source import read_source

ORDER = ("static_fully_async", "default", "fixed_ratio", "separate_async", "predictive")
"""In which tables show them."""


def variant(text: str) -> Variant:
    """`NAME+k=v+k=v`. Raises ConfigError."""
    name, *settings = text.split("+")
    params = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"{text!r}: a setting is written k=v, {setting!r} has no =")
        params[key] = yaml.safe_load(value)
    found = Variant(label=text, name=name, params=params, source=read_source(name))
    make_policy(found.name, found.params, found.source)
    return found
