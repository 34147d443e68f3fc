"""What may be other on this machine, or from a restart on, than the run was planned with: nothing that a decision or a bit depends on.

swingshift run --resume RUN --set model.path=/elsewhere ─▶ run.json: settings ─▶ every service of the run
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bus.errors import ConfigError
from services.config import RunConfig
from services.config_file import overridden

INFO = "run.json"
SETTINGS = "settings"
FREE = ("supervisor.", "monitor.", "redis.", "cluster.")
"""Sections that are about this machine and this session only."""
PLACES = ("model.path", "data.train_files", "data.val_files", "data.reward")
"""Where things are: what is in them is compared with what was planned."""
UNPINNED = "devices=unpinned"


def check_local(settings: Sequence[str]) -> None:
    """Raises ConfigError for a setting that a run cannot go on with."""
    for setting in settings:
        name, _, value = (part.strip() for part in setting.partition("="))
        if name.startswith(FREE) or name in PLACES or f"{name}={value}" == UNPINNED:
            continue
        raise ConfigError(
            f"--set {setting}: a run goes on as it was planned, for its log must stay what the settings lead to; those that may change "
            f"are {', '.join(f'{section}*' for section in FREE)}, {', '.join(PLACES)} and {UNPINNED}. "
            "What `swingshift set RUN` lists can change once it goes on; for other settings begin a new run"
        )


def merged(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """The settings of earlier restarts, as far as they are not set anew."""
    named = {setting.partition("=")[0].strip(): setting for setting in (*before, *now)}
    return list(named.values())


def local_settings(folder: Path) -> list[str]:
    """Those of the run in `folder`; none where nobody changed any. Raises ConfigError."""
    try:
        info = json.loads((folder / INFO).read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / INFO} cannot be read: {error}") from error
    settings = info.get(SETTINGS, []) if isinstance(info, dict) else []
    return [str(setting) for setting in settings]


def with_local_settings(config: RunConfig, folder: Path) -> RunConfig:
    """The planned configuration as it is here. Raises ConfigError."""
    settings = local_settings(folder)
    return overridden(config, settings, f"{folder / INFO}") if settings else config
