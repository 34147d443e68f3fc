"""What a candidate says of itself to who keeps it: how far it is, and why it will not do. A small file in the run's folder.

candidate ─ policies/REQUEST.json: stage, position, detail ─▶ keeper, also when the candidate was killed
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

Stage = Literal["load", "warm_up", "answer", "attach"]
FOLDER = "policies"
EVERY_S = 0.5
"""How often a candidate that gets on says so."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a candidate said last."""

    stage: Stage = "load"
    position: int = 0
    """How far into the log it is."""
    detail: str = ""
    """Why it will not do; empty if it did not say."""


class Trial:
    """The candidate's side."""

    def __init__(self, folder: Path, request: int) -> None:
        self._path = trial_file(folder, request)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._told = Told()
        self._say_at = 0.0
        self._write()

    @property
    def stage(self) -> Stage:
        """What it is at."""
        return self._told.stage

    def at(self, stage: Stage, position: int = 0) -> None:
        """It gets on; positions are told once in a while, stages at once."""
        changed = stage != self._told.stage
        self._told = Told(stage, position or self._told.position)
        if changed or time.monotonic() >= self._say_at:
            self._write()

    def fails(self, detail: str) -> None:
        """It will not do."""
        self._told = Told(self._told.stage, self._told.position, detail)
        self._write()

    def _write(self) -> None:
        self._say_at = time.monotonic() + EVERY_S
        part = self._path.with_suffix(".partial")
        part.write_text(json.dumps({"stage": self._told.stage, "position": self._told.position, "detail": self._told.detail}))
        part.replace(self._path)


def trial_file(folder: Path, request: int) -> Path:
    """Where the candidate for a request says how it does."""
    return folder / FOLDER / f"{request}.json"


def read_trial(folder: Path, request: int) -> Told:
    """What it said last; nothing yet: it is being loaded."""
    try:
        said = json.loads(trial_file(folder, request).read_text())
        return Told(cast(Stage, said["stage"]), int(said["position"]), str(said["detail"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Told()
