"""Which steps of a recorded run can be gone back to: those with a checkpoint that is whole, and after which there is something to do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from bus.errors import CheckpointError, ConfigError
from bus.events import CheckpointSaved
from services.launcher.past import Past
from services.places import CHECKPOINTS, checkpoint_folder

DIGESTS = "digests.json"


def offered_steps(past: Past, folder: Path) -> list[int]:
    """In ascending order. Reads the checkpoints, which takes a while for large ones."""
    return sorted(step for step in newest_saved(past) if step < past.plan.total_steps and whole_checkpoint(past, folder, step) is not None)


def newest_saved(past: Past) -> dict[int, tuple[int, CheckpointSaved]]:
    """Step -> (position, event) of its newest checkpoint."""
    return {saved.step: (position, saved) for position, saved in past.checkpoints}


def whole_checkpoint(past: Past, folder: Path, step: int) -> Path | None:
    """The folder of the step's checkpoint, None when it is not there or torn."""
    found = newest_saved(past).get(step)
    if found is None:
        return None
    try:
        path = checkpoint_folder(found[1].uri, folder)
        digests = json.loads((path / DIGESTS).read_text())
        whole = all(_digest(path / name) == digest for name, digest in digests.items())
    except (CheckpointError, OSError, ValueError):
        return None
    return path if whole and digests else None


def refuse_without_checkpoint(past: Past, folder: Path) -> None:
    """Raises ConfigError when the trainer could not come back: the batches before its oldest kept checkpoint are not kept for a redo."""
    kept = past.kept.saved
    if past.kept.oldest is None or any(_is_there(saved, folder) for saved in kept):
        return
    names = ", ".join(saved.uri.rpartition("/")[2] for saved in kept)
    raise ConfigError(
        f"none of the checkpoints {names} is in {folder / CHECKPOINTS}: the trainer could not come back to step {past.steps_done}; "
        "put one of these folders back, and go on then"
    )


def _is_there(saved: CheckpointSaved, folder: Path) -> bool:
    try:
        path = checkpoint_folder(saved.uri, folder)
        return all((path / name).is_file() for name in json.loads((path / DIGESTS).read_text()))
    except (CheckpointError, OSError, ValueError):
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
