"""A replica as a process: performs what its inbox asks for, from its own start on, and says what happened. It has no core.

    inbox, engine, end of the run ──▶ mailbox ──▶ main thread: perform ▸ append facts

Whatever the engine does not do as asked ends in `ReplicaFailed`; nothing is assumed to have worked.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Literal

from bus.blobs import get_blob
from bus.entry import Draft, Entry, Producer
from bus.errors import BlobMissing, EngineError, WeightsError
from bus.events import (
    AbortRequested,
    Deadlines,
    Event,
    GenerationRequested,
    ReplicaAdded,
    ReplicaAsleep,
    ReplicaAwake,
    ReplicaFailed,
    ServiceStopped,
    SleepRequested,
    WakeRequested,
    WeightsApplied,
    WeightUpdateRequested,
)
from bus.log import Blobs, Log
from services.context import ServiceContext
from services.engines.protocol import Engine, GenerateOutput, GenerateRequest, Sampling
from services.payloads import requested_prompt_blob
from services.replica.answers import seed_of, with_answer, without_answer
from services.replica.mailbox import Ended, Mail, Mailbox
from services.replica.payloads_ahead import PayloadsAhead
from services.samples import PartialAnswer, unpack_answer, unpack_tokens
from services.shell import Terminated
from services.transfer.making import make_taker
from services.transfer.ways import WeightWays
from services.weights.fetcher import WeightFetcher

logger = logging.getLogger(__name__)

DRAIN_S = 30.0
"""How long outputs may take to arrive after the engine said that nothing is in flight."""

During = Literal["start", "wake", "sleep", "abort", "update", "generate"]


class Replica:
    """One incarnation of one replica around one engine."""

    def __init__(self, context: ServiceContext, engine: Engine, sampling: Sampling, eval_sampling: Sampling, slots: int) -> None:
        self._context = context
        self._name = context.name
        self._role: Literal["standalone", "hybrid"] = "hybrid" if context.name in context.plan.hybrid else "standalone"
        self._engine = engine
        self._sampling = sampling
        self._eval_sampling = eval_sampling
        self._slots = slots
        self._log: Log = context.open_log()
        self._blobs: Blobs = context.open_blobs()
        self._fetcher = WeightWays(
            WeightFetcher(context.weights_folder, context.config.weights.delta, _patience(context.plan.deadlines)),
            make_taker(context, engine, self._blobs, lambda: self._producer.epoch),
        )
        self._producer = Producer(f"replica:{context.name}", 0)
        self._mailbox = Mailbox(context, self._give_up_starting)
        self._ahead = PayloadsAhead(self._blobs, ())
        self._in_flight: dict[str, tuple[GenerationRequested, int, PartialAnswer]] = {}
        """Engine's id -> (request, its position, the answer before it)."""
        self._swing = 0
        self._open = False
        self._failed = False
        self._run_ended = False
        self._starting = False
        """The engine starts, which with some takes minutes."""

    def run(self) -> None:
        """Serves until the run has ended. Raises Fenced when a newer incarnation has taken over."""
        attached = self._log.attach(self._producer.source, Draft(self._context.started(), derived=False, cause=0, at=time.time_ns()))
        self._producer = attached.producer
        with self._context.alive(attached.producer.epoch):
            try:
                self._begin(attached.position)
                self._serve()
                self._say(ServiceStopped(reason="the run has ended"))
            except Terminated:
                self._say(ServiceStopped(reason="terminated"))
            finally:
                self._mailbox.close()
                self._engine.close()
                self._fetcher.close()

    def _begin(self, position: int) -> None:
        self._mailbox.follow(position, self._producer.epoch)
        began = time.monotonic()
        self._starting = True
        started = self._try("start", position, self._engine.start)
        self._starting = False
        if started:
            self._mailbox.poll(self._engine)
            added = ReplicaAdded(replica=self._name, role=self._role, slots=self._slots, seconds=time.monotonic() - began)
            self._say(added, cause=position)

    def _give_up_starting(self) -> None:
        """The main thread waits for the engine, which nobody needs any more: as if this process had been told to end."""
        if self._starting and not self._context.in_process:
            os.kill(os.getpid(), signal.SIGTERM)

    def _serve(self) -> None:
        while not self._run_ended:
            self._take(self._mailbox.get())

    def _take(self, mail: Mail) -> None:
        if isinstance(mail, EngineError):
            self._fail("generate", mail, 0)
        elif isinstance(mail, BaseException):
            raise mail
        elif isinstance(mail, Ended):
            self._run_ended = True
        else:
            outputs = [item for item in mail if isinstance(item, GenerateOutput)]
            if outputs:
                self._finish(outputs)
            entries = [item for item in mail if isinstance(item, Entry)]
            self._ahead = PayloadsAhead(self._blobs, [e.event for e in entries if isinstance(e.event, GenerationRequested)])
            for entry in entries:
                self._perform(entry)

    def _perform(self, entry: Entry) -> None:
        event, position = entry.event, entry.position
        match event:
            case GenerationRequested():
                self._generate(event, position)
            case AbortRequested(epoch=epoch) if epoch == self._producer.epoch and not self._failed:
                self._try("abort", position, lambda: self._abort(event))
            case WakeRequested(epoch=epoch) if epoch == self._producer.epoch and not self._failed:
                self._try("wake", position, lambda: self._wake(event, position))
            case SleepRequested(epoch=epoch) if epoch == self._producer.epoch and not self._failed:
                self._try("sleep", position, lambda: self._sleep(event, position))
            case WeightUpdateRequested(epoch=epoch) if epoch == self._producer.epoch and not self._failed:
                self._try("update", position, lambda: self._update(event, position))
            case _:
                pass

    def _generate(self, event: GenerationRequested, position: int) -> None:
        expected_swing = self._swing if self._role == "hybrid" else 0
        if event.epoch != self._producer.epoch or event.swing != expected_swing or not self._open or self._failed:
            self._say(without_answer(self._name, event, "refused"), cause=position)
            return
        try:
            prefix = PartialAnswer() if event.prefix is None else unpack_answer(get_blob(self._ahead, event.prefix))
            prompt = unpack_tokens(self._ahead.get(requested_prompt_blob(event)))
        except BlobMissing as error:
            self._say(without_answer(self._name, event, "error", str(error)), cause=position)
            return
        request = GenerateRequest(
            request=f"{event.request}#{event.attempt}",
            prompt_tokens=prompt,
            prefix_tokens=prefix.tokens,
            max_new_tokens=event.max_new_tokens,
            sampling=self._sampling if event.evaluates is None else self._eval_sampling,
            seed=seed_of(self._context.plan.seed, event),
        )
        self._in_flight[request.request] = (event, position, prefix)
        self._engine.submit(request)

    def _abort(self, event: AbortRequested) -> None:
        wanted = set(event.requests)
        self._engine.abort([key for key, (request, _, _) in self._in_flight.items() if not wanted or request.request in wanted])

    def _wake(self, event: WakeRequested, position: int) -> None:
        began = time.monotonic()
        self._engine.wake()
        loaded = self._fetcher.fetch(event).load_into(self._engine)
        self._engine.open()
        self._swing, self._open = event.swing, True
        seconds = time.monotonic() - began
        self._say(
            ReplicaAwake(
                replica=self._name, swing=event.swing, version=event.version, revision=event.revision, seconds=seconds,
                transport=loaded.transport, num_bytes=loaded.num_bytes,
            ),
            cause=position,
        )  # fmt: skip

    def _sleep(self, event: SleepRequested, position: int) -> None:
        began = time.monotonic()
        self._pause()
        self._engine.sleep()
        self._say(ReplicaAsleep(replica=self._name, swing=event.swing, seconds=time.monotonic() - began), cause=position)

    def _update(self, event: WeightUpdateRequested, position: int) -> None:
        began = time.monotonic()
        fetched = self._fetcher.fetch(event)
        keeps = self._open and event.mode == "keep"
        try:
            if keeps:
                self._engine.freeze()
            elif self._open:
                self._pause()
            elif self._engine.stats().state == "asleep":
                self._engine.wake()
            loaded = fetched.load_into(self._engine)
            self._engine.open()
        except (EngineError, WeightsError):
            if keeps:
                self._let_go()
            raise
        self._open = True
        self._say(
            WeightsApplied(
                replica=self._name, version=event.version, revision=event.revision, seconds=time.monotonic() - began,
                transport=loaded.transport, num_bytes=loaded.num_bytes,
            ),
            cause=position,
        )  # fmt: skip

    def _pause(self) -> None:
        """Returns when every request in flight has its outcome in the log."""
        self._open = False
        self._engine.pause()
        self._drain()

    def _let_go(self) -> None:
        """What is in flight ends with what it has, to go on elsewhere: this replica will be killed, and nobody could ask it then."""
        for step in (self._pause, self._drain):
            try:
                step()
            except EngineError as error:
                logger.warning("an answer in flight may be lost: error=%s", error)

    def _drain(self) -> None:
        """Waits for outputs until nothing is in flight."""
        deadline = time.monotonic() + DRAIN_S
        while self._in_flight:
            outputs = self._mailbox.outputs(deadline - time.monotonic())
            if not outputs:
                raise EngineError(f"the engine paused, but {len(self._in_flight)} requests have no output after {DRAIN_S} s")
            self._finish(outputs)

    def _finish(self, outputs: Sequence[GenerateOutput]) -> None:
        facts: list[tuple[Event, int]] = []
        payloads: dict[str, bytes] = {}
        for output in outputs:
            event, position, prefix = self._in_flight.pop(output.request)
            fact, payload = with_answer(self._name, event, prefix, output)
            facts.append((fact, position))
            payloads |= payload
        drafts = [Draft(fact, derived=False, cause=cause, at=time.time_ns()) for fact, cause in facts]
        self._log.append_with(payloads, self._producer, drafts)

    def _try(self, during: During, cause: int, action: Callable[[], None]) -> bool:
        """Runs one request to the engine; a failure is said and ends this incarnation's usefulness."""
        try:
            action()
        except (EngineError, WeightsError) as error:
            self._fail(during, error, cause)
            return False
        return True

    def _fail(self, during: During, error: Exception, cause: int) -> None:
        logger.error("replica failed: during=%s error=%s", during, error)
        self._failed = True
        self._open = False
        self._say(ReplicaFailed(replica=self._name, during=during, error=str(error)[:2_000]), cause=cause)

    def _say(self, fact: Event, cause: int = 0) -> None:
        self._log.append(self._producer, [Draft(fact, derived=False, cause=cause, at=time.time_ns())])


def _patience(deadlines: Deadlines) -> float:
    """How long weights may take to be seen: there must be time left to load them, or to say what is wrong, before it is killed."""
    return min(deadlines.wake_s, deadlines.update_s) / 2


def main(context: ServiceContext) -> None:
    """Runs one replica until the run has ended."""
    config = context.config
    sampling = config.rollout.sampling()
    Replica(context, context.make_engine(), sampling, config.evaluation.sampling(sampling.stop_token_ids), config.rollout.slots).run()
