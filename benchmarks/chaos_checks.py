"""What must hold of a run that was under fire, from its recording alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.chaos_run import Broken, Fired
from benchmarks.chaos_shapes import Shape
from bus.entry import Entry
from bus.events import BatchFormed, RedoDiverged, RunEnded, ServiceStarted, StepDone, WeightsPublished
from bus.payload_recording import PayloadRecording
from bus.recording import Recording
from replay.ledger import Ledger
from replay.ledger_command import read_ledger
from replay.recorded import verify_recording
from replay.subjects import subjects
from replay.train import Retraining, trained_steps
from services.learner.redo import KINDS

IN_ORDER = ("completed", "prompts_exhausted")


def check(fired: Fired, shape: Shape) -> Ledger:
    """Raises Broken naming everything that does not hold; returns the ledger."""
    with Recording.open(fired.folder) as recording:
        entries = list(recording.entries())
    ledger = read_ledger(fired.folder)
    faults = [
        *_order(entries, shape),
        *(f"ledger: {fault}" for fault in ledger.faults),
        *_verified(fired.folder),
        *_trained_again(fired.folder),
        *_memory(fired, shape),
    ]
    if faults:
        raise Broken("\n  ".join(["what must hold does not:", *faults[:20]]))
    return ledger


def _order(entries: Sequence[Entry], shape: Shape) -> Iterable[str]:
    """Steps one by one, no sample twice, versions never back, nothing redone to other bits, and the end."""
    steps = [entry.event.step for entry in entries if isinstance(entry.event, StepDone)]
    if steps != list(range(1, len(steps) + 1)) or len(steps) > shape.most_steps:
        yield f"steps are done as {steps}"
    samples = [sample for entry in entries if isinstance(entry.event, BatchFormed) for sample in entry.event.samples]
    if len(samples) != len(set(samples)):
        yield f"trained twice: {sorted({sample for sample in samples if samples.count(sample) > 1})}"
    versions = [(entry.event.version, entry.event.revision) for entry in entries if isinstance(entry.event, WeightsPublished)]
    if versions != [(version, 0) for version in range(len(versions))]:
        yield f"versions are published as {versions}"
    yield from (f"position {entry.position}: {entry.event}" for entry in entries if isinstance(entry.event, RedoDiverged))
    ends = [entry.event.reason for entry in entries if isinstance(entry.event, RunEnded)]
    if len(ends) != 1 or ends[0] not in IN_ORDER:
        yield f"the run ended as {ends}"


def _verified(folder: Path) -> Iterable[str]:
    report = verify_recording(folder, subjects)
    yield from (f"verify: {difference}" for difference in [*report.differences, *report.other_code])


def _trained_again(folder: Path) -> Iterable[str]:
    with Recording.open(folder) as recording, PayloadRecording.open(folder) as payloads:
        steps = trained_steps(recording.rows(kinds=KINDS), folder)
        report, _ = Retraining(folder, steps, payloads, lambda batches, _: batches).run(None, None)
    if report.error:
        yield f"train: {report.error}"
    if report.different is not None:
        yield f"train: version {report.different.version} has digest {report.different.now}, {report.different.recorded} was published"


def _memory(fired: Fired, shape: Shape) -> Iterable[str]:
    """While the archiver is away payloads wait for it; afterwards they go, so what is there at the least must not grow with the run."""
    late = fired.payloads[len(fired.payloads) * 2 // 3 :]
    if late and min(late) > shape.payloads:
        yield f"memory: Redis held at least {min(late)} payloads towards the end, {shape.payloads} are the most a run of this shape needs"


def hits_before_publication(entries: Sequence[Entry]) -> int:
    """How often the trainer was gone between StepDone at a boundary and WeightsPublished."""
    hits, done = 0, False
    for entry in entries:
        match entry.event:
            case StepDone():
                done = entry.event.is_boundary
            case WeightsPublished():
                done = False
            case ServiceStarted() if entry.source == "trainer":
                hits += done
            case _:
                pass
    return hits
