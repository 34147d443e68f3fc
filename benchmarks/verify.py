"""How fast a recording is verified: entries a second of processor time, on one core, reading and decoding included.

    rows decoded, chain and envelopes ─┬─▶ one core at a time
                                       ├─▶ policy and controller together      the bar: 50,000 entries/s
                                       └─▶ all four, and the invariants        what `swingshift replay verify` does

Run it with `python -m benchmarks.verify [FOLDER]`; without a folder it simulates a run first (benchmarks/long_recording.py). The last
line is one JSON object.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks.long_recording import record, simulate
from bus.recording import Recording
from replay.core_check import CoreCheck
from replay.differences import Report
from replay.lookahead import with_answers
from replay.payload_check import PayloadCheck
from replay.recorded import CheckedEntries, outline_of, verify_recording
from replay.subjects import subjects
from replay.verify import BATCH

ENTRIES = 100_000
ROUNDS = 3


def main(arguments: Sequence[str]) -> None:
    if arguments:
        measure(Path(arguments[0]))
        return
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder), simulate(ENTRIES))
        measure(Path(folder))


def measure(folder: Path) -> None:
    """Prints the rates of the recording in `folder`."""
    with Recording.open(folder) as recording:
        count = recording.last_position()
    print(f"{count} entries; Python {sys.version.split()[0]}; median of {ROUNDS} rounds, processor time of one process")
    rates = {"rows, chain": rate(count, lambda: check(folder, ()))}
    for sources in (("policy",), ("controller",), ("trainer",), ("rollouter",), ("policy", "controller")):
        rates[" and ".join(sources)] = rate(count, lambda sources=sources: check(folder, sources))  # type: ignore[misc]
    rates["everything"] = rate(count, lambda: passed(folder))
    for name, found in rates.items():
        print(f"{name:<24} {found:>10,.0f} entries/s {1e6 / found:>8.2f} us an entry")
    print(json.dumps({f"{name.replace(', ', '_').replace(' ', '_')}_per_s": round(found) for name, found in rates.items()}))


def check(folder: Path, sources: Sequence[str]) -> None:
    """Reads the recording, checks chain and envelopes, and the decisions of these services."""
    report = Report()
    with Recording.open(folder) as recording:
        last = recording.last_position()
        outline = outline_of(recording, last)
        checks = [CoreCheck(subject, outline.attached, report) for subject in subjects(outline.attached) if subject.source in sources]
        entries = CheckedEntries(recording, PayloadCheck(None, report), report)
        source = with_answers(entries.read(last), outline.last_answer)
        while batch := list(islice(source, BATCH)):
            for core in checks:
                core.follow(batch)
    assert report.passed, report.differences[0]


def passed(folder: Path) -> None:
    """What the command does."""
    report = verify_recording(folder, subjects)
    assert report.passed, report.differences[0]


def rate(count: int, work: Callable[[], None]) -> float:
    """Entries a second."""
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        found.append(count / (time.process_time() - began))
    return median(found)


if __name__ == "__main__":
    main(sys.argv[1:])
