"""Where the files are that a log names: a run may have been moved since, or have lost its shared memory. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from bus.errors import CheckpointError, WeightsError
from services.machine import SHARED_MEMORY

CHECKPOINTS = "checkpoints"
"""Where a run's checkpoints lie in its folder."""


def shm_folder(run: str, root: Path = SHARED_MEMORY) -> Path:
    """Where a run publishes in shared memory; what lies there when it has ended is of no use to anybody."""
    return root / f"swingshift-{run}"


def published_file(uri: str, folder: Path | None = None) -> Path:
    """A publication's file: in `folder`, if it is there, else where it was written. Raises WeightsError for a URI that is not a file's."""
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc:
        raise WeightsError(f"weights uri {uri!r} is not of the form file:///path: this version reads no other transport")
    path = Path(url2pathname(parts.path))
    here = None if folder is None else folder.absolute() / path.name
    return here if here is not None and here.is_file() else path


def checkpoint_folder(uri: str, folder: Path) -> Path:
    """A recorded checkpoint: below the run's folder, wherever that lies now, else where it was written. Raises CheckpointError."""
    written = Path(url2pathname(urlsplit(uri).path))
    here = folder / CHECKPOINTS / written.name
    for path in (here, written):
        if path.is_dir():
            return path
    raise CheckpointError(f"checkpoint {here} is not there: it was removed, or not copied with the run's folder")
