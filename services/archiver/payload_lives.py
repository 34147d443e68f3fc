"""Which payloads are dead: a fold of the recorded log. What it names is on the disk, and nobody will read it on the server any more.

    prompt, answers    of a sample, an evaluation    from the first request on, until SampleReady | SampleDropped | EvalDone
                                                     and no request of it is without outcome
    sample             from SampleReady on           until SampleDropped, or until it was trained at a step that is not after the
                                                     oldest kept checkpoint: no redo can need it then

Names follow from the requests, so what a killed process wrote and could not tell of goes with the rest.

`floor`: whatever was born up to there is dead. Who begins there with an empty fold, having seen the entries of `RARE`, comes to the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bus.entry import Entry
from bus.events import (
    BatchFormed,
    CheckpointSaved,
    EvalDone,
    EvalRequested,
    GenerationFinished,
    GenerationRequested,
    ReplicaLost,
    SampleDropped,
    SampleReady,
    SampleStarted,
    ServiceStarted,
    StepDone,
    WeightsPublished,
)
from bus.requests import Requests
from services.payloads import answer_blob, requested_prompt_blob, sample_blob
from services.trainer import kept
from services.trainer.kept import KeptCheckpoints

RARE = (*kept.KINDS, *(event.kind for event in (ReplicaLost, ServiceStarted)))
KINDS = (
    *RARE,
    *(
        event.kind
        for event in (
            BatchFormed, EvalDone, EvalRequested, GenerationFinished, GenerationRequested, SampleDropped, SampleReady, SampleStarted,
        )
    ),
)  # fmt: skip
"""All that this fold looks at."""


@dataclass
class Work:
    """The prompts and answers of one sample, or of one evaluation."""

    born: int
    """Position of its first entry."""
    is_over: bool = False
    """It is accounted for: nothing more will be asked about it."""
    open: int = 0
    """Requests without an outcome."""
    names: dict[str, None] = field(default_factory=dict)


class PayloadLives:
    """Feed it every entry of `KINDS` once, in order."""

    def __init__(self) -> None:
        self._requests = Requests()
        self._samples: dict[int, Work] = {}
        self._evaluations: dict[int, Work] = {}
        self._ready: dict[int, int] = {}
        """Sample -> where it was born, while it is ready and waits for a step."""
        self._batches: list[tuple[int, BatchFormed]] = []
        """(position, batch) of steps that a redo may need."""
        self._kept = KeptCheckpoints()

    @property
    def floor(self) -> int | None:
        """Everything born up to this position is dead; None: everything is."""
        works = (next(iter(works.values())).born for works in (self._samples, self._evaluations) if works)
        firsts = [*works, *self._ready.values(), *(position for position, _ in self._batches[:1])]
        return min(firsts) - 1 if firsts else None

    def live(self) -> Iterator[str]:
        """Names of all payloads that somebody may read, whether they were ever written or not."""
        for works in (self._samples, self._evaluations):
            for work in works.values():
                yield from work.names
        yield from (sample_blob(sample) for sample in self._ready)
        yield from (sample_blob(sample) for _, batch in self._batches for sample in batch.samples)

    def apply(self, entry: Entry) -> list[str]:
        """Takes in one entry; returns the names of the payloads that are dead from here on."""
        dead = self._note(entry)
        for outcome in self._requests.apply(entry):
            dead += self._finish(outcome.request)
        return dead

    def _note(self, entry: Entry) -> list[str]:
        event = entry.event
        match event:
            case SampleStarted():
                self._samples[event.sample] = Work(entry.position)
            case EvalRequested():
                self._evaluations.setdefault(event.version, Work(entry.position))
            case GenerationRequested():
                self._request(entry.position, event)
            case SampleReady():
                work = self._samples.get(event.sample)
                if work is not None and not work.is_over:
                    self._ready[event.sample] = work.born
                return self._end(self._samples, event.sample)
            case SampleDropped():
                self._ready.pop(event.sample, None)
                # Also of one that was never ready: its payload may have been written by who was killed before saying so.
                return [sample_blob(event.sample), *self._end(self._samples, event.sample)]
            case EvalDone():
                return self._end(self._evaluations, event.version)
            case BatchFormed():
                self._batches.append((entry.position, event))
                for sample in event.samples:
                    self._ready.pop(sample, None)
            case CheckpointSaved() | StepDone() | WeightsPublished():
                self._kept.apply(event)
                return self._forget()
            case _:
                pass
        return []

    def _request(self, position: int, event: GenerationRequested) -> None:
        works, number = self._of(event)
        # About what is over nothing is asked; should it be, its payloads go with the outcome.
        work = works.setdefault(number, Work(position, is_over=True))
        work.open += 1
        work.names[requested_prompt_blob(event)] = None
        work.names[answer_blob(event.request, event.attempt)] = None

    def _finish(self, event: GenerationRequested) -> list[str]:
        works, number = self._of(event)
        works[number].open -= 1
        return self._bury(works, number)

    def _of(self, event: GenerationRequested) -> tuple[dict[int, Work], int]:
        return (self._samples, event.sample) if event.evaluates is None else (self._evaluations, event.evaluates)

    def _end(self, works: dict[int, Work], number: int) -> list[str]:
        if number not in works:
            return []
        works[number].is_over = True
        return self._bury(works, number)

    def _bury(self, works: dict[int, Work], number: int) -> list[str]:
        work = works[number]
        if not work.is_over or work.open:
            return []
        del works[number]
        return list(work.names)

    def _forget(self) -> list[str]:
        oldest = self._kept.oldest
        if oldest is None:
            return []
        dead = [sample_blob(sample) for _, batch in self._batches if batch.step <= oldest.step for sample in batch.samples]
        self._batches = [(position, batch) for position, batch in self._batches if batch.step > oldest.step]
        return dead
