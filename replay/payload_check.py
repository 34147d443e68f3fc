"""Whether every payload that the entries name is recorded, and is the one that was named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bus.entry import Entry
from bus.errors import BlobMissing, ConfigError, LogError
from bus.events import BlobRef, Event, GenerationFinished, SampleReady
from bus.payload_recording import FILE_NAME, PayloadRecording
from bus.run_recorder import payload_of
from replay.differences import LOG, Difference, Report


class PayloadCheck:
    """Feed it every entry; without recorded payloads it only counts those that are named."""

    def __init__(self, payloads: PayloadRecording | None, report: Report) -> None:
        self._payloads = payloads
        self._report = report

    def take(self, entries: Iterable[Entry]) -> None:
        """Compares what the entries name."""
        for entry in entries:
            ref = payload_of(entry.event)
            if ref is not None:
                if self._payloads is None:
                    self._report.unchecked_payloads += 1
                else:
                    self._compare(self._payloads, entry, ref)

    def _compare(self, payloads: PayloadRecording, entry: Entry, ref: BlobRef) -> None:
        self._report.payloads += 1
        try:
            payloads.get_ref(ref)
        except (BlobMissing, LogError) as error:
            self._report.add(Difference(entry.position, entry.source, "payload", f"the payload of {_whose(entry.event)}: {error}"))


@contextmanager
def open_payloads(folder: Path, report: Report) -> Iterator[PayloadCheck]:
    """The payloads in `folder`, if they are recorded; a file that cannot be read is a difference."""
    if not (folder / FILE_NAME).is_file():
        yield PayloadCheck(None, report)
        return
    try:
        payloads = PayloadRecording.open(folder)
    except (ConfigError, LogError) as error:
        report.add(Difference(0, LOG, "payload", f"no payload can be checked: {error}"))
        yield PayloadCheck(None, report)
        return
    with payloads:
        yield PayloadCheck(payloads, report)


def _whose(event: Event) -> str:
    match event:
        case SampleReady():
            return f"sample {event.sample}"
        case GenerationFinished():
            return f"answer {event.request}, attempt {event.attempt}"
        case _:
            return event.kind
