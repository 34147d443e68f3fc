"""Runs of the model spread over processes, one a core; jobs and results are lines of JSON.

python -m benchmarks.queueing.jobs        reads a job a line, writes its result a line
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from pydantic import BaseModel, ConfigDict

from benchmarks.queueing.driven import drive
from benchmarks.queueing.fixed import SEARCHED, STATIC, seconds_of
from benchmarks.queueing.regime import FILE, Regimes
from bus.events import Value
from services.policy.making import make_policy


class Variant(BaseModel):
    """A policy with its settings; `label` is how it was asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    name: str
    params: dict[str, Value]
    source: str
    """Text of its file; empty for a built-in one."""


class Job(BaseModel):
    """One run, or with `variant` None, all runs of the search in hindsight, static first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Path = FILE
    regime: str
    seed: int
    free_swings: bool
    variant: Variant | None


class Result(BaseModel):
    """Seconds of each run, and the counts of a policy's one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: tuple[float, ...]
    lends: int = 0
    extra_lends: int = 0
    rejected: int = 0
    waited_s: float = 0.0


def perform(job: Job) -> Result:
    """Runs a job in this process."""
    regime = Regimes.load(job.file).by_name[job.regime]
    if job.free_swings:
        regime = regime.with_free_swings()
    lengths = regime.sample_lengths(job.seed)
    if job.variant is None:
        return Result(seconds=tuple(seconds_of(regime, lengths, setting) for setting in (STATIC, *SEARCHED)))
    policy = make_policy(job.variant.name, job.variant.params, job.variant.source)
    run = drive(regime, lengths, policy)
    return Result(seconds=(run.seconds,), lends=run.lends, extra_lends=run.extra_lends, rejected=run.rejected, waited_s=run.waited_s)


def perform_all(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, Result]]:
    """The same in child processes; results come as they are there. Raises SystemExit when a child fails."""
    todo: SimpleQueue[Job] = SimpleQueue()
    done: SimpleQueue[tuple[Job, Result] | str] = SimpleQueue()
    for job in jobs:
        todo.put(job)
    children = [_start() for _ in range(min(processes, len(jobs)))]
    threads = [Thread(target=_feed, args=(child, todo, done), daemon=True) for child in children]
    for thread in threads:
        thread.start()
    try:
        for _ in jobs:
            found = done.get()
            if isinstance(found, str):
                raise SystemExit(found)
            yield found
    finally:
        for child in children:
            child.kill()
        for child, thread in zip(children, threads, strict=True):
            thread.join()
            with child:
                pass


def _start() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.queueing.jobs"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _feed(child: subprocess.Popen[str], todo: SimpleQueue[Job], done: SimpleQueue[tuple[Job, Result] | str]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    while True:
        try:
            job = todo.get_nowait()
        except Empty:
            return
        try:
            child.stdin.write(job.model_dump_json() + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except OSError:
            line = ""
        if not line:
            label = "the search" if job.variant is None else job.variant.label
            done.put(f"{label} in {job.regime}, seed {job.seed}: its process ended; what it said is above")
            return
        done.put((job, Result.model_validate_json(line)))


def main() -> None:
    """Performs jobs until there are no more."""
    for line in sys.stdin:
        print(perform(Job.model_validate_json(line)).model_dump_json(), flush=True)


if __name__ == "__main__":
    main()
