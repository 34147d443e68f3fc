"""`swingshift run --resume RUN --from-step N`: a run goes back. What it did since stays as it is: the new run has its own folder and log.

    old recording  1 RunPlanned   2 … p │ p+1 …        p: just before what only the steps after N led to
    new recording  1 RunPlanned   2 … p │ CheckpointSaved(N) ─▶ goes on like a run that is resumed
                     └ parent, parent_position

Positions, causes and bodies are the same; the chain is computed anew, for the first entry is another one. Payloads and checkpoints that
the copied entries name are copied, later ones are not, so nothing of a later step can be read in the new run.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bus import chain
from bus.codec import encode
from bus.errors import BlobMissing, ConfigError
from bus.events import CheckpointSaved, Event
from bus.payload_recording import FILE_NAME, PayloadRecorder, PayloadRecording
from bus.recorder import Recorder
from bus.recording import Recording, Row
from bus.run_recorder import payload_of
from services.launcher.folders import CODE, make_run_folder, named_by, refuse_known_folder, write_info
from services.launcher.past import Past
from services.launcher.run import Screen
from services.launcher.valid import newest_saved, offered_steps, whole_checkpoint
from services.local_settings import local_settings
from services.places import CHECKPOINTS
from services.planned import config_of

logger = logging.getLogger(__name__)

AT_A_TIME = 1000
COPIED = (CODE, "weights/initial", "weights/initial.json")
"""What a run began with, as the archiver recorded it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the copied prefix ends, and the checkpoint that follows on it (None: it is in the prefix, or redo leads to it)."""

    position: int
    saved: CheckpointSaved | None


def go_back(parent: Path, step: int, run: str, root: Path, screen: Screen) -> Path:
    """Makes the folder of the new run `run` below `root`, ready to be resumed; returns it. Raises ConfigError, LogError."""
    refuse_known_folder(root, run)
    past = Past.read(parent, partial(screen.working, "reading the run that is gone back in"))
    cut = where_to_cut(past, parent, step)
    folder = make_run_folder(root, run)
    try:
        _copy(parent, folder, run, past, cut, screen)
        write_info(folder, run, named_by(parent), config_of(past.plan).resolved(), local_settings(parent))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    screen.say(f"run {run} begins with the first {cut.position} entries of {past.plan.run}, up to step {step}; that run stays as it is")
    return folder


def where_to_cut(past: Past, folder: Path, step: int) -> Cut:
    """Raises ConfigError for a step that cannot be gone back to, naming those that can."""
    saved = newest_saved(past)
    if step not in saved or whole_checkpoint(past, folder, step) is None:
        state = "its checkpoint is torn or gone" if step in saved else "it has no checkpoint"
        steps = offered_steps(past, folder)
        others = f"steps that can: {', '.join(map(str, steps))}" if steps else "no step can"
        raise ConfigError(f"step {step} of run {past.plan.run} cannot be gone back to: {state}; {others}")
    if step >= past.plan.total_steps:
        raise ConfigError(f"step {step} is the last one of run {past.plan.run}: nothing is left to be done after it")
    position, event = saved[step]
    ends = [position, *(formed - 1 for number, formed in past.formed.items() if number > step)]
    ends += [past.stop_position - 1] if past.stop_position is not None else []
    ends += [past.ended[0] - 1] if past.ended is not None else []
    end = min(ends)
    # Before it was asked to stop, the batch in training is not finished: its checkpoint is of something that is still to be done.
    follows = end < position and event.position <= end
    return Cut(end, event if follows else None)


def _copy(parent: Path, folder: Path, run: str, past: Past, cut: Cut, screen: Screen) -> None:
    plan = past.plan.model_copy(update={"run": run, "parent": past.plan.run, "parent_position": cut.position})
    with Recording.open(parent) as source, Recorder.open(folder, run, uuid.uuid4().hex) as recorder:
        rows = _renewed(_rows(source, plan, cut))
        while batch := [row for _, row in zip(range(AT_A_TIME), rows, strict=False)]:
            recorder.append_rows(batch)
            _copy_payloads(parent, folder, batch)
            screen.working("copying what it had", min(batch[-1].position, cut.position), cut.position)
    kept = {saved.uri.rpartition("/")[2] for position, saved in past.checkpoints if position <= cut.position}
    kept |= {cut.saved.uri.rpartition("/")[2]} if cut.saved is not None else set()
    for name in sorted(kept):
        _copy_tree(parent / CHECKPOINTS / name, folder / CHECKPOINTS / name)
    for name in COPIED:
        _copy_tree(parent / name, folder / name)


def _rows(source: Recording, plan: Event, cut: Cut) -> Iterator[Row]:
    """The new run's rows, with chains that are still to be computed."""
    first = next(source.rows(1, 1))
    yield first._replace(body=encode(plan), version=plan.schema_version)
    yield from source.rows(2, cut.position)
    if cut.saved is not None:
        found = next(row for row in source.rows(cut.position + 1, kinds=[CheckpointSaved.kind]) if row.entry().event == cut.saved)
        yield found._replace(position=cut.position + 1)


def _renewed(rows: Iterator[Row]) -> Iterator[Row]:
    previous = chain.GENESIS
    for row in rows:
        previous = row.link(previous)
        yield row._replace(chain=previous)


def _copy_payloads(parent: Path, folder: Path, rows: list[Row]) -> None:
    refs = [ref for row in rows if (ref := payload_of(row.entry().event)) is not None]
    if not refs or not (parent / FILE_NAME).is_file():
        return
    with PayloadRecording.open(parent) as source, PayloadRecorder.open(folder) as recorder:
        found: dict[str, bytes] = {}
        for ref in refs:
            try:
                found[ref.name] = source.get_ref(ref)
            except BlobMissing as error:
                logger.warning("a payload is not copied: error=%s", error)
        recorder.put(found)


def _copy_tree(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link, dirs_exist_ok=True)
    elif source.is_file():
        _link(str(source), str(target))


def _link(source: str, target: str) -> None:
    """The same file under a second name, for these are never written again; a copy on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
