"""Checkpoint folders of a run. Their names contain the trainer's epoch, so that a predecessor's late write never lands in one of ours."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote, urlparse

from services.places import checkpoint_folder

_NAME = re.compile(r"checkpoint-e\d+-s\d+")


class CheckpointFiles:
    """The checkpoints below one folder. A run may be moved with its folder, so they are found by their name."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def folder(self, epoch: int, step: int) -> Path:
        """Where the checkpoint after `step` goes. What lies there already is of a history that was lost, and is removed."""
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / f"checkpoint-e{epoch}-s{step}"
        if path.is_dir():
            shutil.rmtree(path)
        return path

    def path(self, uri: str) -> Path:
        """The folder of a recorded checkpoint. Raises CheckpointError when it is not there."""
        return checkpoint_folder(uri, self._root.parent)

    def keep(self, uris: Collection[str]) -> None:
        """Removes all others that are older than the newest of `uris`; of a later one the log may only not know yet."""
        kept = {self._root / Path(unquote(urlparse(uri).path)).name for uri in uris}
        present = [path for path in kept if path.is_dir()]
        if not present:
            return
        newest = max(path.stat().st_mtime_ns for path in present)
        for path in self._root.iterdir():
            if _NAME.fullmatch(path.name) and path not in kept and path.stat().st_mtime_ns < newest:
                shutil.rmtree(path)
