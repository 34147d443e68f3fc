"""What the cluster's nodes get of this checkout before anything starts there: a node needs Python, Ray and the packages, no installation.

swingshift run … --on ray ─▶ working_dir: this checkout, its packages only          + cluster.runtime_env
ray job submit --working-dir DIR … ─▶ the job's own environment, which Ray merges   + what of cluster.runtime_env it does not have
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import services
from bus.errors import ConfigError

CHECKOUT = Path(services.__file__).resolve().parents[1]
SENT = ("bus", "policies", "services", "replay", "examples", "swingshift.py", "pyproject.toml")
"""Of the checkout: what services import, and files that say what this is."""
NEVER = ("**/__pycache__/", "*.pyc")
WORKING_DIR, EXCLUDES, VARIABLES = "working_dir", "excludes", "env_vars"
SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by Ray for a job's driver: the job's own runtime environment."""


def submitted_env(environment: Mapping[str, str]) -> Mapping[str, object] | None:
    """The runtime environment of the submitted job that this process is the driver of; None: it is none. Raises ConfigError."""
    text = environment.get(SUBMITTED)
    if text is None:
        return None
    try:
        found = json.loads(text).get("runtime_env") or {}
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{SUBMITTED} is {text[:200]!r}, which is not what `ray job submit` sets: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{SUBMITTED} has the runtime_env {found!r}, which is no map: submit the job anew")
    return found


def runtime_env(asked: Mapping[str, object], submitted: Mapping[str, object] | None, checkout: Path = CHECKOUT) -> dict[str, object]:
    """What Ray is to be told. `asked`: `cluster.runtime_env`. Raises ConfigError where it and the job that was submitted disagree."""
    given = dict(submitted or {})
    _check_agreement(asked, given)
    ours = {name: value for name, value in asked.items() if name not in given}
    variables = {name: value for name, value in _variables(asked).items() if name not in _variables(given)}
    ours |= {VARIABLES: variables} if variables else {}
    if WORKING_DIR in given or WORKING_DIR in ours:
        return ours
    further = ours.get(EXCLUDES)
    excludes = [*excluded(checkout), *(further if isinstance(further, list) else [])]
    return ours | {WORKING_DIR: str(checkout), EXCLUDES: excludes}


def excluded(checkout: Path) -> list[str]:
    """What stays here of a checkout (environments, runs, tests), as patterns of .gitignore."""
    others = sorted(path.name for path in checkout.iterdir() if path.name not in SENT)
    return [*(f"/{name}" for name in others), *NEVER]


def _check_agreement(asked: Mapping[str, object], given: Mapping[str, object]) -> None:
    """The job's words hold for its driver, too, so Ray takes no others."""
    differing = [name for name in asked if name != VARIABLES and name in given and given[name] != asked[name]]
    variables, theirs = _variables(asked), _variables(given)
    differing += [f"{VARIABLES}.{name}" for name in variables if name in theirs and theirs[name] != variables[name]]
    if differing:
        raise ConfigError(
            f"cluster.runtime_env sets {', '.join(differing)} otherwise than the job that was submitted: take it out of one of the two "
            "(`ray job submit --runtime-env-json`, --set cluster.runtime_env=…)"
        )


def _variables(environment: Mapping[str, object]) -> Mapping[str, object]:
    found = environment.get(VARIABLES)
    return found if isinstance(found, dict) else {}
