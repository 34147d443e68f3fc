"""A folder for what the processes of one vLLM share: their sockets, and what went wrong in them.

vLLM's messages are pickled, so whoever reaches one of its sockets can run code in it: only the user may enter the folder. It is removed
when the server is closed; one whose server could not do so is removed by the next that starts.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "swingshift-vllm-"
LOCK = "lock"
ERRORS = "errors"
"""One line for each error that one of the processes has logged."""
LONGEST = 103 - len(f"/{PREFIX}12345678/") - 36
"""Bytes of the place's name with which that of a socket, whose file is named by a UUID, still fits the kernel's limit."""
YOUNG_S = 60.0
"""A folder that is younger may not have its lock yet."""
TAIL_BYTES = 4096


class Folder:
    """Made where temporary files are; held by a lock as long as this process lives."""

    def __init__(self) -> None:
        root = Path(tempfile.gettempdir())
        if len(os.fsencode(root)) > LONGEST:
            root = Path("/tmp")
        _sweep(root)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        self._lock = (self.path / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def errors(self) -> Path:
        """The file for what goes wrong."""
        return self.path / ERRORS

    def last_error(self) -> str:
        """What was logged last; empty: nothing."""
        try:
            with self.errors.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def remove(self) -> None:
        """With all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep(root: Path) -> None:
    """Removes the folders of those who were killed."""
    for path in root.glob(PREFIX + "*"):
        try:
            if path.lstat().st_uid != os.getuid() or path.is_symlink() or time.time() - path.lstat().st_mtime < YOUNG_S:
                continue
            with (path / LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue
