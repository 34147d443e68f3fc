"""`swingshift export RUN --version v`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bus.errors import CheckpointError, ConfigError, WeightsError
from bus.events import Event, RunPlanned
from bus.recording import FILE_NAME, Recording
from services.cli.mistakes import mistakes_explained
from services.cli.source import find, open_source
from services.config import SCRIPTED
from services.launcher.folders import FoundRun
from services.planned import config_of
from services.trainer.versions import KINDS, VersionPlaces, versions_of

if TYPE_CHECKING:
    import torch

READ_LIMIT = 512
TRIES = 5
PAUSE_S = 0.5


def export_command(named: str, redis: str | None, runs: Path, version: int | None, to: Path | None) -> None:
    """Writes a version of a run's weights as a Hugging Face folder."""
    with mistakes_explained():
        from services.learner.hf_folder import write_hf_folder

        found = find(named, runs, redis)
        if to is not None:
            _refuse_existing(to)
        model, chosen, weights, source = _read(found, version)
        target = (to or found.folder / f"export-v{chosen.version}").absolute()
        _refuse_existing(target)
        write_hf_folder(weights, Path(model), target)
        typer.echo(f"version {chosen.version} of run {found.run} (step {chosen.step}, from {source}) is in {target}")


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise ConfigError(f"{target} is there already: name another place with --to DIR, or remove it")


def _read(found: FoundRun, version: int | None) -> tuple[str, VersionPlaces, Mapping[str, torch.Tensor], str]:
    """The initial model, the version, its weights and where they were. What a live run removes meanwhile is newer by then: read anew."""
    for tries_left in reversed(range(TRIES)):
        plan, *events = _events(found)
        assert isinstance(plan, RunPlanned)
        model = config_of(plan).model.path
        if model == SCRIPTED:
            raise ConfigError(f"run {found.run} has no model: its model.path is {SCRIPTED}")
        chosen = _chosen(found.run, versions_of(events, found.folder), version, model)
        try:
            return model, chosen, *_weights(chosen)
        except ConfigError:
            if version is not None or tries_left == 0:
                raise
            time.sleep(PAUSE_S)
    raise AssertionError("unreachable: the last try returns or raises")


def _events(found: FoundRun) -> Iterator[Event]:
    """The plan, then what tells of versions: from the recording, which needs no server, else from the log."""
    if (found.folder / FILE_NAME).is_file():
        with Recording.open(found.folder) as recording:
            yield recording.entry(1).event
            for row in recording.rows(kinds=KINDS):
                yield row.entry().event
        return
    with open_source(found) as source:
        position = 0
        while entries := source.read(position, READ_LIMIT):
            yield from (entry.event for entry in entries if entry.position == 1 or entry.event.kind in KINDS)
            position = entries[-1].position


def _chosen(run: str, places: Mapping[int, VersionPlaces], version: int | None, model: str) -> VersionPlaces:
    """The version asked for, or the newest that there is. Raises ConfigError naming those that there are."""
    available = [number for number, place in sorted(places.items()) if place.available]
    if version is None and available:
        return places[available[-1]]
    if version in available:
        return places[version]
    had = f"version {version} of run {run} was never published" if version not in places else f"version {version} of run {run} is gone"
    if version is None:
        had = f"no version of run {run} is there to be exported"
    rest = f"those that can be exported: {', '.join(map(str, available))}" if available else "none can be exported any more"
    initial = f"; version 0 is the model it began with, in {model}" if 0 not in available else ""
    raise ConfigError(f"{had}; {rest}{initial}")


def _weights(place: VersionPlaces) -> tuple[Mapping[str, torch.Tensor], str]:
    """The tensors, whose digest is the one that was published, and where they were. Raises ConfigError when no place has them."""
    from services.learner.checkpoint import MODEL, read_checkpoint
    from services.learner.digests import weights_digest
    from services.learner.wire import as_published
    from services.weights.store import load_weights

    troubles: list[str] = []
    if place.published is not None:
        try:
            return load_weights(place.published, place.digest), "the published weights"
        except WeightsError as error:
            troubles.append(str(error))
    for folder in place.checkpoints:
        try:
            weights = as_published(read_checkpoint(folder, {MODEL}).part(MODEL), place.dtype)
        except CheckpointError as error:
            troubles.append(str(error))
            continue
        if weights_digest(weights) == place.digest:
            return weights, f"checkpoint {os.path.relpath(folder)}"
        troubles.append(f"{folder} has other weights than were published")
    raise ConfigError(f"version {place.version} cannot be exported: {'; '.join(troubles)}")
