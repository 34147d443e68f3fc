"""The files of users' policies, written into a recording's `code/` as soon as one is planned, asked for, or attaches.

The entries hold their text already; this is for people, and for whoever takes a run's code elsewhere. A file that comes again with another
text is written beside the first, its name with a digest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from bus.disk import flush
from bus.events import Event, PolicyAttached, PolicyRequested, RunPlanned
from bus.recording import Recording, Row
from services.policy.source import file_and_class

logger = logging.getLogger(__name__)

KINDS = (RunPlanned.kind, PolicyRequested.kind, PolicyAttached.kind)
MOST_WAITING = 64
"""Texts that wait for a disk that takes nothing; further ones are in the entries only."""


class PolicySources:
    """Feed it what was recorded. `code`: the recording's folder for it."""

    def __init__(self, code: Path) -> None:
        self._code = code
        self._waiting: dict[tuple[str, str], None] = {}
        """(name, text) of what could not be written yet."""

    def recover(self, recording: Recording) -> None:
        """Writes those that were recorded before."""
        for kind in KINDS:
            self.take(recording.rows(kinds=[kind]))

    def take(self, rows: Iterable[Row]) -> None:
        """Writes the sources among them; what the disk does not take is tried again with the next ones."""
        for row in rows:
            found = _source_of(row.entry().event) if row.kind in KINDS else None
            if found is not None and len(self._waiting) < MOST_WAITING:
                self._waiting[found] = None
        for name, text in tuple(self._waiting):
            try:
                write_source(self._code, name, text)
            except OSError as error:
                logger.warning("a policy's file is not written, its text is in the log: policy=%s error=%s", name, error)
                return
            del self._waiting[name, text]


def _source_of(event: Event) -> tuple[str, str] | None:
    match event:
        case RunPlanned(policy=name, policy_source=text) | PolicyRequested(name=name, source=text) | PolicyAttached(name=name, source=text):
            return (name, text) if text else None
        case _:
            return None


def write_source(code: Path, name: str, text: str) -> None:
    """Writes the file of policy `name`, unless it is there. Raises OSError."""
    content, file = text.encode(), Path(file_and_class(name)[0])
    path = code / file.name
    if path.exists() and path.read_bytes() != content:
        path = code / f"{file.stem}-{blake2b(content, digest_size=4).hexdigest()}{file.suffix}"
    if path.exists():
        return
    code.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    flush(partial)
    partial.replace(path)
    flush(code)
