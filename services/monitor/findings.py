"""What is wrong with a run: found from where its log ends, and from who shows a sign of life."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bus.events import Stalled
from services.monitor.last_words import ended_words, last_words
from services.monitor.situation import ServiceState, Situation
from services.monitor.waits import deadlines, waits
from services.policy.core import SOURCE, label_of

GONE = "the log has no end and its server does not answer: the run was cut off; start the server again, then its services"
IN_ORDER = ("completed", "prompts_exhausted", "stopped")
"""Ends of a run that are no failure."""
LATE_S = 10.0
"""How long after its time a deadline may still be on its way into the log."""
RECENT_S = 600.0
"""How long a policy that was lost twice or more often counts as one that fails."""
RESTART_S = 60.0
"""How long a restart may take before it is a problem."""


def problems_of(found: Situation, alive: Mapping[str, int] | None, now: int, gone: str = GONE) -> list[str]:
    """In words, with what to do. `alive`: service -> epoch that shows a sign of life; None: there is no server to ask. `now`: ns.

    `gone`: what is said when there is none, though the run has not ended.
    """
    if found.ended is not None:
        ended = found.ended
        words = f"the run {ended_words(ended)}; what services said is in the run's logs folder"
        return [] if ended.reason in IN_ORDER else [words]
    if alive is None:
        return [gone]
    return [*_lost(found, alive, now), *_failing(found, now), *_stuck(found, now, controller="controller" in alive)]


def _lost(found: Situation, alive: Mapping[str, int], now: int) -> Iterator[str]:
    if not found.services:
        yield "no service has started yet: start them with `swingshift serve`"
    for source, state in found.services.items():
        if state.is_here and alive.get(source) != state.epoch:
            yield f"{source} shows no sign of life (epoch {state.epoch}): {_consequence(source)}"
        elif state.state == "lost":
            yield f"{source} is lost and will not be restarted{_detail(state)}: {_consequence(source)}"
        elif state.state == "lost, restarting" and (now - state.entry.at) / 1e9 > RESTART_S:
            yield f"{source} is lost and has not started again for {(now - state.entry.at) / 1e9:.0f} s{_detail(state)}"


def _failing(found: Situation, now: int) -> Iterator[str]:
    """Policies whose own code fails again and again."""
    run, history = "RUN" if found.plan is None else found.plan.run, found.policies
    for source, policy in ((SOURCE, history.active), *history.shadows.items()):
        state = found.services.get(source)
        if policy is None or state is None or not policy.losses.count or state.state == "lost":
            continue
        seconds = (now - policy.losses.at) / 1e9
        if state.is_here and (policy.losses.count < 2 or seconds > RECENT_S):
            continue
        words = f"policy {policy.chosen}{f' in the shadow {label_of(source)}' if label_of(source) else ''} fails: it was lost"
        yield f"{words} {policy.losses}, {max(0.0, seconds):.0f} s ago, and is started again; {_way_out(found, source, run)}"


def _way_out(found: Situation, source: str, run: str) -> str:
    if label_of(source):
        return f"`swingshift policy detach {run} {label_of(source)}` ends it"
    back = f"`swingshift policy rollback {run}` lets the one before it decide again, " if found.policies.num_stretches > 1 else ""
    return f"boundaries pass without its verdict meanwhile: {back}`swingshift policy swap {run} NAME` lets another one decide"


def _stuck(found: Situation, now: int, controller: bool) -> Iterator[str]:
    if found.stalled is not None and isinstance(found.stalled.event, Stalled):
        stalled = found.stalled.event
        waiting = "; ".join(stalled.waiting_on) or "nobody"
        yield f"stalled since entry {found.stalled.position}: {stalled.have} of {stalled.need} samples are ready, waiting for {waiting}"
    for wait in waits(found):
        if wait.never:
            yield f"{wait.who} waits for {wait.what}, which cannot come by itself: {wait.never}"
    if "memory" in found.paused:
        yield "generation is paused because the log's memory budget is used up: see redis.memory_budget, and whether the archiver records"
    for due in deadlines(found) if controller else ():
        late = now / 1e9 - (due.since.at / 1e9 + due.seconds)
        if late > LATE_S:
            yield f"deadline {due.key} passed {late:.0f} s ago and the controller has not said so: it hangs, or clocks differ"


def _detail(state: ServiceState) -> str:
    said = last_words(state.detail)
    return f" ({said})" if said else ""


def _consequence(source: str) -> str:
    if label_of(source):
        return "what it would have decided is not recorded; the run does not need it"
    role = source.partition(":")[0]
    what = {
        "controller": "nobody decides about the devices, watches deadlines, or ends the run",
        "trainer": "nothing is trained, and a swing cannot go on",
        "rollouter": "no request is routed, no answer is scored",
        "policy": "boundaries pass without a verdict",
        "archiver": "nothing is recorded, so nothing may be forgotten",
        "replica": "what it had in flight is lost once the controller knows",
        "monitor": "measures are not told; the run does not need it",
    }.get(role, "it is missing")
    return f"{what}; start it again (`swingshift serve {role}`), unless a supervisor does"
