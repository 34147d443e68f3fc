"""Which reader a data file has, and digests by which a file that has changed is noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from bus.errors import ConfigError
from services.data.arrow import arrow_files, folder_rows, parquet_rows
from services.data.json_lines import json_rows
from services.data.row import Row

DIGEST_CHARACTERS = 16
_KINDS = "name a .jsonl file, a .parquet file, or a folder saved with save_to_disk"


def rows(file: str, keys: Sequence[str]) -> Iterator[Row]:
    """The rows of one file with at least the columns that `keys` lead into. Raises ConfigError for a file that cannot be read."""
    path = _there(file)
    try:
        if path.is_dir():
            yield from folder_rows(path, keys)
        elif path.suffix == ".jsonl":
            yield from json_rows(path)
        elif path.suffix == ".parquet":
            yield from parquet_rows(path, keys)
        else:
            hint = f"; JSON is read one object a line, from {path.stem}.jsonl" if path.suffix == ".json" else ""
            raise ConfigError(f"{path} has the suffix {path.suffix or '(none)'}, which is not known: {_KINDS}{hint}")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def digest_of(files: Sequence[str]) -> str:
    """Digest over the contents of files, in their order. Raises ConfigError for one that cannot be read."""
    total = hashlib.sha256()
    for part in _parts(files):
        try:
            with part.open("rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise ConfigError(f"{part} cannot be read: {error.strerror or error}") from error
    return total.hexdigest()[:DIGEST_CHARACTERS]


def stamps_of(files: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    """(path, bytes, time of the last change) of each: if all are as they were, the file most likely is, too. Raises ConfigError."""
    return tuple((str(part), part.stat().st_size, part.stat().st_mtime_ns) for part in _parts(files) if part.exists())


def _there(file: str) -> Path:
    path = Path(file)
    if not path.exists():
        raise ConfigError(f"there is no {path.absolute()}: {_KINDS}")
    return path


def _parts(files: Sequence[str]) -> list[Path]:
    """The files that names stand for."""
    paths = [_there(file) for file in files]
    return [part for path in paths for part in (arrow_files(path) if path.is_dir() else [path])]
