"""Which prompts are started, where their requests go, and when routes are opened and cut.

Order of what is decided on an entry: cut and open routes first (nothing is routed between `RoutesCut` and `RoutesOpened`), then what an
evaluation needs (evaluation.py), then weight updates, then requests to the replicas that are free, then new samples as far as replicas are
free and the staleness limit has room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bus.books import Books
from bus.core import Deadline, Request
from bus.entry import Entry
from bus.events import (
    AbortRequested,
    CutRoutesRequested,
    Event,
    GenerationRequested,
    OpenRoutesRequested,
    PromptsExhausted,
    RebalanceRequested,
    RolloutPaused,
    RolloutResumed,
    RoutesCut,
    RoutesOpened,
    RunEnded,
    RunPlanned,
    SampleDropped,
    SampleMoved,
    SampleReady,
    SampleStarted,
    SettingChanged,
    SwitchStarted,
    WeightsApplied,
    WeightUpdateRequested,
)
from bus.requests import ANSWERING, Outcome, Requests
from services.rollouter.evaluation import Evaluation
from services.rollouter.groups import AnswerState, Groups, MoveReason, generation_request
from services.rollouter.routes import Routes


@dataclass(frozen=True, slots=True)
class Score(Request):
    """Reward the answers of a complete sample and make it ready (or drop it as failed or filtered)."""

    sample: int
    answers: tuple[AnswerState, ...]


class RollouterCore:
    """See `bus.core.Core`."""

    source = "rollouter"

    def __init__(self) -> None:
        self.books = Books()
        self.requests = Requests()
        self.routes = Routes(self.requests)
        self.evaluation = Evaluation(self.requests, self.routes, self.books.settings)
        self.groups: Groups | None = None
        self.paused: dict[str, None] = {}
        self.ended = False
        self._request_number = 0
        self._to_open: OpenRoutesRequested | None = None
        self._to_cut: CutRoutesRequested | None = None
        self._moves: list[tuple[str, tuple[str, ...]]] = []
        self._moved: list[SampleMoved] = []
        self._to_move: dict[str, None] = {}
        """Requests that were asked to leave their replica and have not ended yet."""
        self._swinging_back = False
        """Routes are being cut: what is aborted now leaves because of a swing."""

    def apply(self, entry: Entry) -> None:
        event = entry.event
        answering = type(event) in ANSWERING
        if not answering:
            self.books.apply(event)
        outcomes = self.requests.apply(entry)
        newcomer = isinstance(event, WeightsApplied) and self.routes.is_new(event.replica)
        self.routes.apply(entry)
        self.evaluation.apply(entry, outcomes)
        if isinstance(event, RunPlanned):
            self.groups = Groups(event)
        if self.groups is not None:
            self._apply_to_groups(event, self.groups)
            for outcome in (outcome for outcome in outcomes if outcome.request.evaluates is None):
                self.groups.finish(outcome, entry.position, self._reason_to_leave(outcome))
        if not answering:
            self._apply_to_routing(event)
        if newcomer and self._rebalances:
            self._moves = self._plan_moves()

    @property
    def _rebalances(self) -> bool:
        """Answers move when a replica is added or woken."""
        plan = self.books.plan
        return plan is not None and plan.enable_rebalance

    def _reason_to_leave(self, outcome: Outcome) -> MoveReason:
        request, finished = outcome
        to_move = request.request in self._to_move
        self._to_move.pop(request.request, None)
        if finished is None:
            return "lost"
        if to_move:
            return "rebalance"
        return "swing" if self._swinging_back and request.swing else "update"

    def _apply_to_groups(self, event: Event, groups: Groups) -> None:
        match event:
            case SampleStarted():
                groups.start(event.sample)
            case SampleReady():
                groups.remove(event.sample)
            case SampleDropped():
                groups.drop(event.sample)
            case GenerationRequested(evaluates=None):
                self._note_move(event, groups)
                self._request_number += 1
                groups.requested(event)
            case SampleMoved():
                self._moved = self._moved[1:]
            case SettingChanged() if self.books.plan is not None:
                groups.plan = self.books.plan
            case _:
                pass

    def _apply_to_routing(self, event: Event) -> None:
        match event:
            case OpenRoutesRequested():
                self._to_open = event
            case RoutesOpened():
                self._to_open = None
                self._moves = self._plan_moves() if self._rebalances else []
            case CutRoutesRequested():
                self._to_cut = event
            case RoutesCut():
                self._to_cut = None
                self._moves = []
            case SwitchStarted():
                self._swinging_back = event.target == "train"
            case RebalanceRequested():
                self._moves = self._plan_moves()
            case AbortRequested(reason="rebalance", requests=requests):
                self._moves = self._moves[1:]
                self._to_move.update(dict.fromkeys(requests))
            case RolloutPaused():
                self.paused[event.reason] = None
            case RolloutResumed():
                self.paused.pop(event.reason, None)
            case RunEnded():
                self.ended = True
            case _:
                pass

    def _plan_moves(self) -> list[tuple[str, tuple[str, ...]]]:
        return self.routes.moves(self.groups.num_waiting if self.groups is not None else 0)

    def _note_move(self, event: GenerationRequested, groups: Groups) -> None:
        group = groups.by_sample.get(event.sample)
        if group is None:
            return
        state = group.answers[event.answer]
        if state.left_because is not None and state.last_replica not in ("", event.replica):
            self._moved.append(
                SampleMoved(sample=event.sample, request=event.request, source=state.last_replica, reason=state.left_because)
            )
        state.left_because = None

    def decide(self) -> Event | None:
        if self.ended or self.groups is None:
            return None
        return (
            self._switch_routes()
            or self.evaluation.decide(self.books)
            or self._update_weights()
            or self._account(self.groups)
            or self._route(self.groups)
            or self._feed(self.groups)
        )

    def _switch_routes(self) -> Event | None:
        if self._to_cut is not None:
            return RoutesCut(swing=self._to_cut.swing)
        if self._to_open is not None:
            alive = tuple(name for name in self._to_open.replicas if self._is_of_swing(name, self._to_open.swing))
            return RoutesOpened(swing=self._to_open.swing, replicas=alive)
        return None

    def _is_of_swing(self, name: str, swing: int) -> bool:
        route = self.routes.by_name.get(name)
        return route is not None and route.swing == swing

    def _update_weights(self) -> Event | None:
        newest = self.books.publication
        route = self.routes.to_update(newest)
        if route is None or newest is None:
            return None
        plan = self.books.plan
        keeps = plan is not None and plan.weight_update_mode == "keep" and not route.hybrid
        return WeightUpdateRequested(
            replica=route.name, epoch=route.epoch, version=newest.version, revision=newest.revision, uri=newest.uri, digest=newest.digest,
            mode="keep" if keeps else "abort", delta=newest.delta, direct=newest.direct,
        )  # fmt: skip

    def _account(self, groups: Groups) -> Event | None:
        if self._moved:
            return self._moved[0]
        for sample in groups.failed:
            return SampleDropped(sample=sample, reason="failed", detail=groups.by_sample[sample].last_error)
        if self._moves:
            return self._abort_to_move(*self._moves[0])
        return None

    def _abort_to_move(self, name: str, requests: tuple[str, ...]) -> Event:
        route = self.routes.by_name.get(name)
        return AbortRequested(
            replica=name,
            epoch=0 if route is None else route.epoch,
            reason="rebalance",
            swing=0 if route is None else route.swing,
            requests=requests,
        )

    def _route(self, groups: Groups) -> Event | None:
        waiting = groups.next_waiting()
        if waiting is None:
            return None
        sample, answer = waiting
        state = groups.by_sample[sample].answers[answer]
        stay = state.last_replica if state.left_because == "update" else ""
        avoid = state.last_replica if state.left_because in ("error", "rebalance") else ""
        route = self.routes.choose(self._request_number, stay, avoid)
        return None if route is None else generation_request(f"{sample}.{answer}", groups, sample, answer, route)

    def _feed(self, groups: Groups) -> Event | None:
        books = self.books
        if books.prompts_left <= 0:
            return None if books.exhausted else PromptsExhausted(num_prompts=books.started)
        if books.stop_requested or books.version < 0:
            return None
        change = self._pause_or_resume()
        if change is not None:
            return change
        if books.startable > 0 and "memory" not in self.paused and self.routes.free_slots() > 0:
            return SampleStarted(sample=books.started, version=books.version)
        return None

    def _pause_or_resume(self) -> Event | None:
        no_replica = not self.routes.any_can_serve()
        if no_replica != ("no_replica" in self.paused):
            return RolloutPaused(reason="no_replica") if no_replica else RolloutResumed(reason="no_replica")
        full = self.books.room == 0
        if full != ("staleness" in self.paused):
            return RolloutPaused(reason="staleness") if full else RolloutResumed(reason="staleness")
        return None

    def outstanding(self) -> Sequence[Request]:
        if self.ended or self.groups is None:
            return []
        scores = [
            Score(f"score:{sample}", group.completed_by, sample, tuple(group.answers))
            for sample, group in ((sample, self.groups.by_sample[sample]) for sample in self.groups.complete)
        ]
        return [*scores, *self.evaluation.outstanding()]

    def deadlines(self) -> Sequence[Deadline]:
        return []
