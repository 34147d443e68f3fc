"""Rows of Parquet files and of folders that `datasets` saved with `save_to_disk`, read by pyarrow (the extra `data`)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol

from bus.errors import ConfigError
from services.data.row import Row

BATCH_ROWS = 1024
_STATE, _SPLITS = "state.json", "dataset_dict.json"


class _Batch(Protocol):
    """The part of pyarrow's RecordBatch that is used."""

    num_rows: int

    def to_pylist(self) -> list[dict[str, object]]:
        """The rows, with Python's own types."""


def parquet_rows(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    """The rows with the columns that `keys` lead into. Raises ConfigError."""
    arrow = _pyarrow(path)
    try:
        with importlib.import_module("pyarrow.parquet").ParquetFile(path) as file:
            names: tuple[str, ...] = tuple(file.schema_arrow.names)
            seen = 0
            for batch in file.iter_batches(BATCH_ROWS, columns=_chosen(names, keys)):
                yield from _rows(path, names, batch, seen)
                seen += batch.num_rows
    except (arrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}") from error


def folder_rows(folder: Path, keys: Sequence[str]) -> Iterator[Row]:
    """The same for a folder."""
    arrow = _pyarrow(folder)
    seen = 0
    for part in arrow_files(folder):
        try:
            with part.open("rb") as stream, importlib.import_module("pyarrow.ipc").open_stream(stream) as reader:
                names: tuple[str, ...] = tuple(reader.schema.names)
                for batch in reader:
                    yield from _rows(folder, names, batch.select(_chosen(names, keys)), seen)
                    seen += batch.num_rows
        except (arrow.ArrowException, OSError) as error:
            raise ConfigError(f"{part} cannot be read as a data set: {error}") from error


def arrow_files(folder: Path) -> list[Path]:
    """The files of a folder written by `save_to_disk`, in the order of their rows. Raises ConfigError."""
    if (folder / _SPLITS).is_file():
        splits = sorted(part.name for part in folder.iterdir() if part.is_dir())
        raise ConfigError(f"{folder} holds the sets {', '.join(splits)}: name one of them, such as {folder / splits[0] if splits else '…'}")
    try:
        state = json.loads((folder / _STATE).read_text())
        return [folder / entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder} is no data set saved with save_to_disk: {_STATE} is missing or not as it should be ({error})"
        ) from error


def _pyarrow(path: Path) -> ModuleType:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(f"{path} is read by pyarrow, which is not installed: install the extra `data`, or write JSONL") from error


def _chosen(names: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The columns that keys name or lead into."""
    return [name for name in names if any(key == name or key.startswith(f"{name}.") for key in keys)]


def _rows(path: Path, names: Sequence[str], batch: _Batch, seen: int) -> Iterator[Row]:
    rows: Sequence[Mapping[str, object]] = batch.to_pylist()
    for number, values in enumerate(rows, seen + 1):
        yield Row(f"{path}, row {number}", values, names)
