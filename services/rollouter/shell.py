"""The rollouter as a process: writes prompts for the replicas, has complete samples scored, and makes them ready.

decisions ──prepare──▶ prompt payloads                        (before the request that names them is appended)
core.outstanding(): score ──▶ reward workers ──▶ sample payload ──▶ SampleReady | SampleDropped
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from statistics import fmean

from bus.blobs import get_blob, put_blob
from bus.entry import Entry
from bus.errors import EngineError
from bus.events import BlobRef, Event, GenerationRequested, SampleDropped, SampleReady
from bus.log import Blobs
from services.context import ServiceContext
from services.payloads import answer_blob, prompt_blob, sample_blob
from services.prompts import PromptSource, make_prompts
from services.rewards import RewardFailure, RewardRunner
from services.rollouter.core import RollouterCore, Score
from services.samples import Answer, SampleGroup, pack_group, pack_tokens, unpack_answer
from services.shell import Facts, Shell

logger = logging.getLogger(__name__)

POLL_S = 0.5
"""How long the scoring thread waits for a result before it looks whether the service ends."""


class RollouterPerformer:
    """See `services.shell.Performer`. `blobs` belongs to the main thread, `scoring_blobs` to the one that waits for rewards."""

    def __init__(self, core: RollouterCore, prompts: PromptSource, rewards: RewardRunner, blobs: Blobs, scoring_blobs: Blobs) -> None:
        self._core = core
        self._prompts = prompts
        self._rewards = rewards
        self._blobs = blobs
        self._scoring_blobs = scoring_blobs
        self._shell: Shell | None = None
        self._begun: dict[int, None] = {}
        self._scoring: dict[int, tuple[SampleGroup, int]] = {}
        """Sample -> (its group without rewards, cause), at the reward workers."""
        self._payloads: dict[int, list[str]] = {}
        """Sample -> its payloads, the prompt first; removed when it is accounted for and nobody works on it."""
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._collect, name="scoring", daemon=True)

    def recovered(self, shell: Shell, entries: Sequence[Entry]) -> None:
        self._shell = shell
        groups = self._core.groups
        for sample, group in {} if groups is None else groups.by_sample.items():
            attempts = [(f"{sample}.{index}", state.attempt) for index, state in enumerate(group.answers)]
            names = [answer_blob(request, attempt) for request, last in attempts for attempt in range(1, last + 1)]
            if names:
                self._payloads[sample] = [prompt_blob(sample), *names]
        self._rewards.start()
        self._thread.start()

    def prepare(self, events: Sequence[Event]) -> None:
        """A request's prompt is written before the request."""
        for event in events:
            if isinstance(event, GenerationRequested):
                if event.sample not in self._payloads:
                    self._blobs.put(prompt_blob(event.sample), pack_tokens(self._prompts.prompt(event.sample).tokens))
                    self._payloads[event.sample] = [prompt_blob(event.sample)]
                self._payloads[event.sample].append(answer_blob(event.request, event.attempt))

    def look(self, entries: Sequence[Entry]) -> None:
        self._remove_payloads()
        outstanding = self._core.outstanding()
        self._begun = {request.sample: None for request in outstanding if isinstance(request, Score) and request.sample in self._begun}
        for request in outstanding:
            if isinstance(request, Score) and request.sample not in self._begun:
                self._begun[request.sample] = None
                self._score(request)

    def _remove_payloads(self) -> None:
        """Only once the sample's outcome is in the log, for a successor would need them to score it again, and no replica works on it."""
        groups = self._core.groups
        done = [sample for sample in self._payloads if groups is None or sample not in groups.by_sample]
        if done:
            busy = self._core.requests.samples()
            names = [name for sample in done if sample not in busy for name in self._payloads.pop(sample)]
            self._blobs.delete(names)

    def close(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        self._rewards.close()

    def _score(self, request: Score) -> None:
        prompt = self._prompts.prompt(request.sample)
        answers = []
        for state in request.answers:
            assert state.blob is not None, "an answer is done without a payload"
            answers.append(self._answer(state.blob, stopped=not state.ran_out))
        group = SampleGroup(request.sample, prompt.tokens, tuple(answers))
        with self._lock:
            self._scoring[request.sample] = (group, request.cause)
        self._rewards.submit(request.sample, prompt.tokens, [answer.tokens for answer in answers], prompt.reference)

    def _answer(self, ref: BlobRef, stopped: bool) -> Answer:
        partial = unpack_answer(get_blob(self._blobs, ref))
        return Answer(partial.tokens, partial.logprobs, partial.spans, "stop" if stopped else "length", 0.0)

    def _collect(self) -> None:
        """Own thread: turns rewards into facts as they come."""
        assert self._shell is not None
        try:
            while not self._ending.is_set():
                facts: list[tuple[Event, int]] = []
                for sample, rewards in self._rewards.poll(POLL_S):
                    facts += self._outcome(sample, rewards)
                if facts:
                    self._shell.post(facts)
        except BaseException as error:  # noqa: BLE001  (the main thread must hear of it, whatever it is)
            self._shell.fail(error)

    def _outcome(self, sample: int, rewards: Sequence[float] | RewardFailure) -> Facts:
        with self._lock:
            group, cause = self._scoring.pop(sample)
        if isinstance(rewards, RewardFailure):
            logger.warning("reward failed: sample=%d reason=%s", sample, rewards.reason)
            fact: Event = SampleDropped(sample=sample, reason="failed", detail=f"{rewards.reason}: {rewards.detail}"[:2_000])
        else:
            fact = self._ready(group, rewards)
        return [(fact, cause)]

    def _ready(self, group: SampleGroup, rewards: Sequence[float]) -> SampleReady:
        answers = tuple(
            Answer(answer.tokens, answer.logprobs, answer.spans, answer.finish, reward)
            for answer, reward in zip(group.answers, rewards, strict=True)
        )
        versions = [span.version for answer in answers for span in answer.spans]
        if not versions:
            raise EngineError(f"sample {group.sample} has no tokens at all: its answers ended before the first one; check the stop tokens")
        scored = SampleGroup(group.sample, group.prompt_tokens, answers)
        ref = put_blob(self._scoring_blobs, sample_blob(group.sample), pack_group(scored))
        return SampleReady(
            sample=group.sample, num_tokens=scored.num_tokens, oldest_version=min(versions), newest_version=max(versions),
            mean_reward=fmean(rewards), blob=ref,
        )  # fmt: skip


def main(context: ServiceContext) -> None:
    """Runs the rollouter until the run has ended."""
    core = RollouterCore()
    prompts = make_prompts(context.config, context.plan.seed)
    rewards = RewardRunner(context.config.data.reward, context.config.rollout.reward_workers, context.config.rollout.reward_timeout_s)
    Shell(context, core, RollouterPerformer(core, prompts, rewards, context.open_blobs(), context.open_blobs())).run()
