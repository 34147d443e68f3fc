"""Whether the initial weights and the checkpoints in a run's folder are the files that were written.

    weights/initial.json ─── size and BLAKE2b of each file of weights/initial/, where it was copied
    CheckpointSaved ─ uri ─▶ checkpoints/NAME/digests.json ─── SHA-256 of each file beside it

A checkpoint that is not there was removed for a newer one; one that is there is whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlparse

from bus.blobs import DIGEST_BYTES
from bus.errors import CodecError
from bus.events import CheckpointSaved
from bus.recording import Recording
from replay.differences import LOG, Difference, Report
from replay.follow import Follow, unwatched

INITIAL = Path("weights", "initial")
INITIAL_INFO = Path("weights", "initial.json")
CHECKPOINTS = "checkpoints"
DIGESTS = "digests.json"
CHUNK = 1 << 20


class Hash(Protocol):
    """What this needs of one of `hashlib`."""

    def update(self, data: bytes, /) -> None:
        """Takes in more."""

    def hexdigest(self) -> str:
        """The digest so far."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A file, and what is said of it by the entry at `position` (0: by no entry)."""

    path: Path
    digest: str
    make: Callable[[], Hash]
    position: int
    source: str


def check_weights(folder: Path, recording: Recording, last: int, report: Report, follow: Follow = unwatched) -> None:
    """Compares every file that there is a digest of. Raises LogError when the recording is damaged."""
    claims = [*_initial(folder, report), *_checkpoints(folder, recording, last, report)]
    for _, claim in follow(enumerate(claims), "verifying weights", len(claims), lambda numbered: numbered[0]):
        report.weights += 1
        try:
            found = _digest(claim.path, claim.make())
        except OSError as error:
            _note(report, claim, f"{claim.path} cannot be read: {error.strerror or error}")
            continue
        if found != claim.digest:
            _note(report, claim, f"{claim.path} has another content than was written", found, claim.digest)


def _initial(folder: Path, report: Report) -> Iterable[Claim]:
    if not (folder / INITIAL).is_dir():
        return
    files = _read(folder / INITIAL_INFO, 0, LOG, report).get("files")
    for name, said in files.items() if isinstance(files, dict) else ():
        digest = said.get("digest") if isinstance(said, dict) else said
        yield Claim(folder / INITIAL / name, str(digest), lambda: blake2b(digest_size=DIGEST_BYTES), 0, LOG)


def _checkpoints(folder: Path, recording: Recording, last: int, report: Report) -> Iterable[Claim]:
    try:
        for row in recording.rows(last=last, kinds=[CheckpointSaved.kind]):
            event = row.entry().event
            assert isinstance(event, CheckpointSaved)
            checkpoint = folder / CHECKPOINTS / Path(unquote(urlparse(event.uri).path)).name
            if checkpoint.is_dir():
                for name, digest in _read(checkpoint / DIGESTS, row.position, row.source, report).items():
                    yield Claim(checkpoint / name, str(digest), sha256, row.position, row.source)
    except CodecError:
        return  # told of by whoever reads all rows


def _read(path: Path, position: int, source: str, report: Report) -> Mapping[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        report.add(Difference(position, source, "weights", f"{path} cannot be read: {error}"))
        return {}
    return content if isinstance(content, dict) else {}


def _digest(path: Path, digest: Hash) -> str:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _note(report: Report, claim: Claim, what: str, recorded: str = "", expected: str = "") -> None:
    report.add(Difference(claim.position, claim.source, "weights", what, recorded, expected))
