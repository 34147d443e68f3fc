"""One supervisor a run: a lock on a file in the run's folder, which the kernel takes away when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from bus.errors import ConfigError

FILE = "lock"


class RunLock:
    """Held while the `with` block runs. Raises ConfigError when another process has it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._descriptor: int | None = None

    def __enter__(self) -> RunLock:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 100, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise ConfigError(
                f"the run in {self._path.parent} is active already, under {holder or 'another process'}: "
                "wait until it has ended, or stop it with `swingshift stop`"
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise ConfigError(f"{self._path} cannot be locked: {error.strerror}; put the run's folder on another file system") from error
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._descriptor is not None:
            # The file stays: one that is removed may be locked by two, each under the name of its own.
            os.close(self._descriptor)
            self._descriptor = None
