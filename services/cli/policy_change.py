"""`swingshift policy swap | shadow | promote | rollback | detach`: asks for another policy, and says what came of it.

what the user named ─▶ checked against the log (nothing is appended for a mistake) ─▶ PolicyRequested ─▶ attached | refused | …
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from bus.errors import ConfigError, LogUnavailable, SwingshiftError
from bus.events import PolicyRefused, PolicyRequested, RunEnded
from bus.recording import FILE_NAME, Recording
from services.cli.mistakes import INTERRUPTED, mistakes_explained
from services.cli.policy_requests import detach_request, policy_settings, promote_request, rollback_request, shadow_request, swap_request
from services.cli.policy_state import PolicyState, catch_up, read_state
from services.cli.screen import TerminalScreen
from services.cli.source import find, open_log, open_source
from services.cli.waiting import Waiting
from services.launcher.folders import FoundRun
from services.monitor.last_words import ended_words
from services.policy.asking import Outcome, ask, wait_for
from services.policy.source import short_name

Request = Callable[[PolicyState], PolicyRequested]
"""What to ask for, of a run as it is. Raises ConfigError for what cannot be asked of it."""
TRACEBACK_LINES = 6
STAGES = {"load": "its code was loaded", "warm_up": "it took in the log", "answer": "it was asked in trial", "attach": "it was to attach"}


@dataclass(frozen=True, slots=True)
class Place:
    """The run that the user named, and how long to wait for what comes of a request."""

    named: str
    redis: str | None
    runs: Path
    wait_s: float


def swap_command(place: Place, name: str, settings: Sequence[str]) -> None:
    """Lets another policy decide."""
    _change(place, lambda state: swap_request(name, policy_settings(settings)))


def shadow_command(place: Place, name: str, settings: Sequence[str], label: str | None) -> None:
    """Lets a policy watch."""
    _change(place, lambda state: shadow_request(state, name, policy_settings(settings), label))


def promote_command(place: Place, label: str) -> None:
    """Lets a shadow decide."""
    _change(place, lambda state: promote_request(state, label))


def rollback_command(place: Place) -> None:
    """Lets the former policy decide again."""
    _change(place, rollback_request)


def detach_command(place: Place, label: str) -> None:
    """Ends a shadow."""
    _change(place, lambda state: detach_request(state, label))


def _change(place: Place, request_for: Request) -> None:
    with mistakes_explained():
        found = find(place.named, place.runs, place.redis)
        screen = TerminalScreen()
        try:
            with open_source(found) as source:
                state = read_state(found, source, screen.working)
                _check_runs(found, state)
                request = request_for(state)
                outcome = _ask(place, found, request, state.position)
                if outcome is not None:
                    catch_up(state, source, outcome.entry.position)
        finally:
            screen.end()
        if outcome is not None:
            typer.echo(f"run {found.run}: {done_words(state, request, outcome)}")
            typer.echo(_hint(state, request, outcome, place.named))


def _check_runs(found: FoundRun, state: PolicyState) -> None:
    if state.ended is not None:
        raise ConfigError(f"run {found.run} {ended_words(state.ended)}: there is nothing left to decide")
    if not state.is_asked:
        why = "it has no hybrid replica, or use_dynamic_resource_scheduling is false"
        typer.echo(f"swingshift: warning: run {found.run} asks no policy, for {why}", err=True)


def _ask(place: Place, found: FoundRun, request: PolicyRequested, since: int) -> Outcome | None:
    """What came of it; None: it was not to be waited for. Raises SwingshiftError when nothing was changed."""
    with open_log(found) as log:
        log.waiting = lambda error, left_s: _check_end(found)
        try:
            position = ask(log, request)
            if not place.wait_s:
                typer.echo(f"run {found.run}: asked (entry {position}); `swingshift policy status {place.named}` shows what comes of it")
                return None
            with Waiting(_waited_for(request)) as waiting:
                outcome = wait_for(log, position, request, place.wait_s, waiting.tell, since=since)
        except LogUnavailable:
            _check_end(found)
            raise
        except KeyboardInterrupt:
            typer.echo(f"no longer waited for; what was asked for stays: `swingshift policy status {place.named}` shows what comes of it")
            raise typer.Exit(INTERRUPTED) from None
    if outcome is None:
        raise SwingshiftError(
            f"nothing came of entry {position} within {place.wait_s:g} s: maybe nobody is there who keeps this run's policies (its "
            f"supervisor, or `swingshift serve policy`). `swingshift doctor {place.named}` says who is missing; the request stays"
        )
    if outcome.how == "ended":
        assert isinstance(outcome.entry.event, RunEnded)
        raise SwingshiftError(f"run {found.run} {ended_words(outcome.entry.event)} before anything came of entry {position}")
    if outcome.how == "refused":
        raise SwingshiftError(refused_words(outcome))
    return outcome


def _check_end(found: FoundRun) -> None:
    """Its server does not answer: an embedded one ends with its run. Raises SwingshiftError when the recording says that this is so."""
    if not (found.folder / FILE_NAME).is_file():
        return
    with Recording.open(found.folder) as recording:
        for row in recording.rows(1, recording.last_position(), (RunEnded.kind,)):
            event = row.entry().event
            if isinstance(event, RunEnded):
                raise SwingshiftError(f"run {found.run} {ended_words(event)}: there is nothing left to decide")


def _waited_for(request: PolicyRequested) -> str:
    return f"shadow {request.label} is to end" if request.action == "detach" else f"{short_name(request.name)} warms up"


def refused_words(outcome: Outcome) -> str:
    """Why nothing was changed: how far it came, and the last lines of what went wrong, which name file and line."""
    event = outcome.entry.event
    stage = f" when {STAGES[event.stage]}" if isinstance(event, PolicyRefused) else ""
    lines = outcome.detail.strip().splitlines()[-TRACEBACK_LINES:] or ["no reason was said"]
    return "\n".join([f"refused{stage} (entry {outcome.entry.position}), nothing was changed:", *(f"  {line}" for line in lines)])


def done_words(state: PolicyState, request: PolicyRequested, outcome: Outcome) -> str:
    """What happened, from where on it counts, and what was before."""
    position, active = outcome.entry.position, state.history.active
    shadow = state.history.shadows.get(outcome.entry.source)
    if request.action == "detach" or active is None:
        return f"shadow {request.label} watches no more (entry {position})"
    if shadow is not None:
        return f"policy {shadow.chosen} watches as {shadow.label} from entry {position} on; boundary {shadow.boundary} is its first"
    # As the log has it: others may have asked, too.
    before = state.history.stretches[-2] if len(state.history.stretches) > 1 else None
    former = "" if before is None else f"\nbefore it: policy {before.chosen}, since entry {before.position}"
    return f"policy {active.chosen} decides from entry {position} on; boundary {active.boundary} is its first{former}"


def _hint(state: PolicyState, request: PolicyRequested, outcome: Outcome, named: str) -> str:
    shadow = state.history.shadows.get(outcome.entry.source)
    if shadow is not None and request.action == "shadow":
        return f"`swingshift policy status {named}` compares it; `swingshift policy promote {named} {shadow.label}` lets it decide"
    if request.action in ("swap", "promote"):
        return f"`swingshift policy rollback {named}` goes back"
    return f"`swingshift policy status {named}` shows who decides and who watches"
