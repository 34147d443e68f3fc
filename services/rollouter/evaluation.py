"""The evaluation that runs: where, what is asked of the replica there, and what comes out of it.

    its turn ─▶ EvalRequested ─▶ WeightUpdateRequested, unless it has them ─▶ GenerationRequested(evaluates) each answer
                   ▲ lost                                                        │ all answers to a prompt
                   └─────────────────────────────────────────────────────────────┤
    all prompts, or time is over, or the run is to stop ─▶ AbortRequested ─▶ EvalDone ◀─ EvalScored

A standalone replica is taken, the least loaded; it serves nothing else until EvalDone, what it had in flight goes on to its end. Only when
no standalone one serves, and the devices are lent for the evaluation, it is a hybrid one, and that only while the version is the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from bus.books import Books
from bus.core import Request
from bus.entry import Entry
from bus.evaluations import Evaluations, number_of, prompt_of
from bus.events import (
    AbortRequested,
    EvalDone,
    EvalRequested,
    EvalScored,
    Event,
    GenerationRequested,
    RunPlanned,
    SwitchStarted,
    WeightsPublished,
    WeightUpdateRequested,
)
from bus.requests import ANSWERING, Outcome, Requests
from bus.settings import Settings
from services.rollouter.groups import AnswerState, Groups, generation_request
from services.rollouter.routes import Routes


@dataclass(frozen=True, slots=True)
class ScoreEvaluation(Request):
    """Reward the answers to a validation prompt."""

    version: int
    prompt: int
    answers: tuple[AnswerState, ...]


class Evaluation:
    """Part of the rollouter's core. `requests` and `routes` are its folds, and have seen each entry already."""

    def __init__(self, requests: Requests, routes: Routes, settings: Settings) -> None:
        self.versions = Evaluations(settings)
        self.answers: Groups | None = None
        """The validation prompts of the version under evaluation that have no score yet, by `number_of` each."""
        self.asked: dict[str, GenerationRequested] = {}
        """Request of this evaluation -> its newest attempt."""
        self._requests = requests
        self._routes = routes
        self._begun: int | None = None
        self._scored: dict[int, EvalScored] = {}
        self._aborted = False
        self._own_swing = False
        """The newest lend was begun for an evaluation."""

    @property
    def version(self) -> int | None:
        """The version under evaluation."""
        return None if self.versions.current is None else self.versions.current.version

    def apply(self, entry: Entry, outcomes: Sequence[Outcome]) -> None:
        """Takes in one entry, and the outcomes of requests that it brought."""
        event = entry.event
        if type(event) not in ANSWERING:
            self.versions.apply(entry)
        if self.version != self._begun:
            self._begin()
        match event:
            case SwitchStarted(target="rollout"):
                self._own_swing = event.reason == "evaluation"
            case GenerationRequested() if self.answers is not None and event.evaluates == self._begun:
                self.answers.requested(event)
                self.asked[event.request] = event
            case EvalScored() if self.answers is not None and event.version == self._begun:
                self._take_score(event, self.answers)
            case AbortRequested(reason="evaluation"):
                self._aborted = True
            case _:
                pass
        for outcome in outcomes:
            if self.answers is not None and outcome.request.evaluates == self._begun:
                self.answers.finish(outcome, entry.position, "lost")
        self._routes.pin(self.versions.pinned.replica if self.versions.pinned is not None else "")

    def _begin(self) -> None:
        self._begun = self.version
        self._scored = {}
        self._aborted = False
        self.answers = None
        self.asked = {}
        plan = self.versions.plan
        if self._begun is not None and plan is not None:
            self.answers = Groups(plan.model_copy(update={"rollout_n": plan.eval_n, "partial_rollout": True}))
            for prompt in range(plan.num_validation):
                self.answers.start(number_of(prompt))

    def _take_score(self, event: EvalScored, answers: Groups) -> None:
        if number_of(event.prompt) in answers.complete:
            answers.remove(number_of(event.prompt))
            self._scored[event.prompt] = event

    # --- decide ------------------------------------------------------------------------------------------------------------------

    def decide(self, books: Books) -> Event | None:
        """What is to be said or asked now."""
        for version in self.versions.superseded:
            return EvalDone(version=version, num_prompts=0, partial=True, metrics={})
        current, answers, plan = self.versions.current, self.answers, books.plan
        if current is None or answers is None or plan is None:
            return None
        if len(self._scored) + len(answers.failed) == plan.num_validation:
            return self._done(current.version, answers, plan)
        if self._must_end(current.version, books, plan):
            return self._abort(current.version) or self._done(current.version, answers, plan)
        if self.versions.pinned is None:
            return self._pin(current)
        return self._go_on(current, answers, plan)

    def _must_end(self, version: int, books: Books, plan: RunPlanned) -> bool:
        # Hybrids serve the newest weights only: with nobody else, the moment of an older version has passed.
        passed = self.versions.pinned is None and version < books.version and not plan.standalone
        return self.versions.timed_out or books.stop_requested or passed

    def _abort(self, version: int) -> Event | None:
        pinned = self.versions.pinned
        if self._aborted or pinned is None:
            return None
        open_requests = self._requests.open.get(pinned.replica, {}).values()
        left = tuple(request.request for request in open_requests if request.evaluates == version)
        if not left:
            return None
        route = self._routes.by_name.get(pinned.replica)
        swing = route.swing if route is not None and route.hybrid else 0
        return AbortRequested(replica=pinned.replica, epoch=pinned.epoch, reason="evaluation", swing=swing, requests=left)

    def _done(self, version: int, answers: Groups, plan: RunPlanned) -> Event:
        scored = [self._scored[prompt] for prompt in sorted(self._scored) if self._scored[prompt].rewards]
        failed = len(answers.failed) + len(self._scored) - len(scored)
        metrics = {"eval/failed_prompts": float(failed), **_metrics(scored)}
        return EvalDone(version=version, num_prompts=len(scored), partial=len(scored) < plan.num_validation, metrics=metrics)

    def _pin(self, current: WeightsPublished) -> Event | None:
        wanted = (current.version, current.revision)
        able = [route for route in self._routes.by_name.values() if route.can_serve]
        found = [route for route in able if not route.hybrid]
        if not found and self._own_swing:
            found = [route for route in able if route.serves == wanted]
        # One that is taking weights may still have others to take before ours.
        found = [route for route in found if not route.suspect and route.updating is None]
        found = [route for route in found if self._routes.reach.can_read(route.name, current)]
        if not found:
            return None
        start = current.version % len(found)
        route = min(found[start:] + found[:start], key=lambda route: self._requests.load(route.name) / route.slots)
        return EvalRequested(version=current.version, replica=route.name, epoch=route.epoch)

    def _go_on(self, current: WeightsPublished, answers: Groups, plan: RunPlanned) -> Event | None:
        pinned, wanted = self.versions.pinned, (current.version, current.revision)
        route = None if pinned is None else self._routes.by_name.get(pinned.replica)
        if pinned is None or route is None or route.epoch != pinned.epoch or not route.can_serve or route.updating == wanted:
            return None
        if route.serves != wanted or route.suspect:
            # By aborting: what is in flight there goes on elsewhere, with newer weights than these.
            return WeightUpdateRequested(
                replica=route.name, epoch=route.epoch, version=current.version, revision=current.revision,
                uri=current.uri, digest=current.digest, delta=current.delta, direct=current.direct,
            )  # fmt: skip
        waiting = answers.next_waiting()
        if waiting is None or self._requests.load(route.name) >= route.slots:
            return None
        number, answer = waiting
        return generation_request(f"eval-{current.version}-{prompt_of(number)}.{answer}", answers, number, answer, route, current.version)

    def outstanding(self) -> list[Request]:
        """Prompts whose answers are all there."""
        version, answers = self.version, self.answers
        if version is None or answers is None:
            return []
        return [
            ScoreEvaluation(
                f"score:eval-{version}-{prompt_of(number)}", group.completed_by, version, prompt_of(number), tuple(group.answers)
            )
            for number, group in ((number, answers.by_sample[number]) for number in answers.complete)
        ]


def _metrics(scored: Sequence[EvalScored]) -> dict[str, float]:
    """Means over all answers; `best_reward`: over the prompts, of the best answer to each."""
    if not scored:
        return {}
    rewards = [reward for event in scored for reward in event.rewards]
    tokens = [count for event in scored for count in event.num_tokens]
    return {
        "eval/mean_reward": fsum(rewards) / len(rewards),
        "eval/best_reward": fsum(max(event.rewards) for event in scored) / len(scored),
        "eval/mean_tokens": sum(tokens) / len(tokens),
        "eval/num_answers": float(len(rewards)),
    }
