"""Gives a server back the payloads that a run still needs and that only its recording has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from bus.blobs import blob_digest
from bus.errors import BlobMissing
from bus.payload_recording import FILE_NAME, PayloadRecording
from bus.redis_blobs import RedisBlobs

logger = logging.getLogger(__name__)

AT_A_TIME = 128
"""Payloads that are asked for together."""

Progress = Callable[[int, int], None]


def put_payloads_back(folder: Path, url: str, run: str, names: Iterable[str], progress: Progress) -> int:
    """Writes those of `names` that are recorded and not on the server as they were recorded; returns how many.

    Those that are not recorded (prompts) their writers write again. Raises LogError.
    """
    wanted = list(names)
    if not wanted or not (folder / FILE_NAME).is_file():
        return 0
    written = 0
    with PayloadRecording.open(folder) as recording, closing(RedisBlobs(url, run)) as blobs:
        for first in range(0, len(wanted), AT_A_TIME):
            written += _put_some(recording, blobs, wanted[first : first + AT_A_TIME])
            progress(min(first + AT_A_TIME, len(wanted)), len(wanted))
    return written


def _put_some(recording: PayloadRecording, blobs: RedisBlobs, names: list[str]) -> int:
    there = {name: blob_digest(data) for name, data in blobs.get_many(names).items()}
    written = 0
    for name in names:
        digest = recording.digest(name)
        if digest is None or digest == there.get(name):
            continue
        try:
            blobs.put(name, recording.get(name))
            written += 1
        except BlobMissing as error:
            logger.warning("a payload cannot be put back: error=%s", error)
    return written
