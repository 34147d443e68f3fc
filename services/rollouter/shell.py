"""The rollouter as a process: writes prompts for the replicas, has complete samples scored, and makes them ready.

decisions ──prepare──▶ prompt payloads                        (before the request that names them is appended)
core.outstanding(): score ──▶ reward workers ─┬─ sample: its payload ──▶ SampleReady | SampleDropped
                                              └─ validation prompt: EvalScored
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from bus.blobs import get_blobs, put_blob
from bus.entry import Entry
from bus.errors import EngineError
from bus.evaluations import number_of, prompt_of
from bus.events import EvalScored, Event, GenerationRequested, SampleDropped, SampleReady
from bus.log import Blobs
from services.context import ServiceContext
from services.data.planning import REWARD_DIGEST, reward_spec
from services.payloads import requested_prompt_blob, sample_blob
from services.prompts import PromptSource, make_prompts
from services.rewards import RewardFailure, RewardRunner
from services.rollouter.core import RollouterCore, Score
from services.rollouter.evaluation import ScoreEvaluation
from services.samples import Answer, SampleGroup, pack_group, pack_tokens, unpack_answer
from services.shell import Facts, Shell
from services.tasks.protocol import Prompt

logger = logging.getLogger(__name__)

Job = Score | ScoreEvaluation
Owner = tuple[Literal["sample", "evaluation"], int]
"""A sample by its number, or an evaluation by its version."""

MAX_DETAIL = 2_000
"""Characters of what is wrong with a reward that go into the log."""
POLL_S = 0.5
"""How long the scoring thread waits for a result before it looks whether the service ends."""


class RollouterPerformer:
    """See `services.shell.Performer`. `blobs` belongs to the main thread, `scoring_blobs` to the one that waits for rewards."""

    def __init__(
        self, core: RollouterCore, prompts: PromptSource, rewards: RewardRunner, blobs: Blobs, scoring_blobs: Blobs, filter_groups: bool
    ) -> None:
        self._core = core
        self._filter_groups = filter_groups
        self._prompts = prompts
        self._rewards = rewards
        self._blobs = blobs
        self._scoring_blobs = scoring_blobs
        self._shell: Shell | None = None
        self._begun: dict[str, None] = {}
        """Keys of requests that are outstanding and begun."""
        self._scoring: dict[int, tuple[Job, SampleGroup]] = {}
        """Number at the reward workers -> the request, and its answers without rewards."""
        self._submitted = 0
        self._written: dict[Owner, dict[str, None]] = {}
        """Whose prompts this incarnation has written, and their names, while they may be asked for again."""
        self._forget_at = 0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._collect, name="scoring", daemon=True)

    def recovered(self, shell: Shell) -> None:
        self._shell = shell
        self._rewards.start()
        self._thread.start()

    def prepare(self, events: Sequence[Event]) -> None:
        """A request's prompt is written before the request, once by each incarnation: it may be gone with the server that had it."""
        for event in events:
            if isinstance(event, GenerationRequested):
                written, prompt = self._written.setdefault(_owner(event), {}), requested_prompt_blob(event)
                if prompt not in written:
                    self._blobs.put(prompt, pack_tokens(self._prompt(event.sample).tokens))
                    written[prompt] = None

    def _prompt(self, number: int) -> Prompt:
        """The prompt of a sample or, below 0, of the validation set."""
        return self._prompts.prompt(number) if number >= 0 else self._prompts.validation(prompt_of(number))

    def look(self, entries: Sequence[Entry]) -> None:
        timeout_s = self._core.books.settings.beside.reward_timeout_s
        if timeout_s is not None:
            self._rewards.allow(timeout_s)
        self._forget_written()
        outstanding = [request for request in self._core.outstanding() if isinstance(request, Score | ScoreEvaluation)]
        self._begun = {request.key: None for request in outstanding if request.key in self._begun}
        for request in outstanding:
            if request.key not in self._begun:
                self._begun[request.key] = None
                self._score(request)

    def _forget_written(self) -> None:
        """Prompts that nobody will be asked about any more, once there are twice as many as after the last time."""
        if len(self._written) < self._forget_at:
            return
        groups, evaluated = self._core.groups, self._core.evaluation.version
        done = [
            (kind, number)
            for kind, number in self._written
            if (number != evaluated if kind == "evaluation" else groups is None or number not in groups.by_sample)
        ]
        for owner in done:
            del self._written[owner]
        self._forget_at = 2 * len(self._written)

    def durable(self, position: int) -> int:
        return position

    def close(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        self._rewards.close()

    def _score(self, request: Job) -> None:
        number = request.sample if isinstance(request, Score) else number_of(request.prompt)
        prompt = self._prompt(number)
        refs = [state.blob for state in request.answers if state.blob is not None]
        assert len(refs) == len(request.answers), "an answer is done without a payload"
        payloads = get_blobs(self._blobs, refs)
        answers = [_answer(data, stopped=not state.ran_out) for state, data in zip(request.answers, payloads, strict=True)]
        with self._lock:
            self._submitted += 1
            self._scoring[self._submitted] = (request, SampleGroup(number, prompt.tokens, tuple(answers)))
        self._rewards.submit(self._submitted, prompt.tokens, [answer.tokens for answer in answers], prompt.reference)

    def _collect(self) -> None:
        """Own thread: turns rewards into facts as they come."""
        assert self._shell is not None
        try:
            while not self._ending.is_set():
                facts: list[tuple[Event, int]] = []
                for number, rewards in self._rewards.poll(POLL_S):
                    facts += self._outcome(number, rewards)
                if facts:
                    self._shell.post(facts)
        except BaseException as error:  # noqa: BLE001  (the main thread must hear of it, whatever it is)
            self._shell.fail(error)

    def _outcome(self, number: int, rewards: Sequence[float] | RewardFailure) -> Facts:
        with self._lock:
            request, group = self._scoring.pop(number)
        error = ""
        if isinstance(rewards, RewardFailure):
            logger.warning("reward failed: request=%s reason=%s", request.key, rewards.reason)
            error, rewards = rewards.told(MAX_DETAIL), ()
        if isinstance(request, ScoreEvaluation):
            num_tokens = () if error else tuple(len(answer.tokens) for answer in group.answers)
            scored = EvalScored(version=request.version, prompt=request.prompt, rewards=tuple(rewards), num_tokens=num_tokens, error=error)
            return [(scored, request.cause)]
        if error:
            return [(SampleDropped(sample=request.sample, reason="failed", detail=error), request.cause)]
        if self._filters and min(rewards) == max(rewards):
            detail = f"all {len(rewards)} answers have the reward {rewards[0]:g}"
            return [(SampleDropped(sample=request.sample, reason="filtered", detail=detail), request.cause)]
        return [(self._ready(group, rewards), request.cause)]

    @property
    def _filters(self) -> bool:
        """As it is now."""
        changed = self._core.books.settings.beside.filter_groups
        return self._filter_groups if changed is None else changed

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


def _answer(payload: bytes, stopped: bool) -> Answer:
    partial = unpack_answer(payload)
    return Answer(partial.tokens, partial.logprobs, partial.spans, "stop" if stopped else "length", 0.0)


def _owner(request: GenerationRequested) -> Owner:
    return ("sample", request.sample) if request.evaluates is None else ("evaluation", request.evaluates)


def main(context: ServiceContext) -> None:
    """Runs the rollouter until the run has ended."""
    core = RollouterCore()
    config, plan = context.config, context.plan
    prompts = make_prompts(config, plan)
    spec = reward_spec(config, str(plan.environment.get(REWARD_DIGEST, "")))
    rewards = RewardRunner(spec, config.rollout.reward_workers, config.rollout.reward_timeout_s)
    filters = config.rollout.filter_groups
    performer = RollouterPerformer(core, prompts, rewards, context.open_blobs(), context.open_blobs(), filters)
    Shell(context, core, performer).run()
