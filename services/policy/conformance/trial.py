"""The runs themselves: plays every script with the policy on it, and says of each how the policy did."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bus.codec import encode
from bus.entry import Entry
from bus.errors import CodecError, LogError, PolicyFailed
from bus.events import SwitchRequested, SwitchStarted
from services.policy.conformance.finding import Finding
from services.policy.conformance.led import Played
from services.policy.conformance.play import Play, attached_of
from services.policy.conformance.scripts import LONG, SCRIPTS, Script
from services.policy.conformance.tried import Tried
from services.policy.conformance.watched import Unsound, Watched
from services.policy.core import SOURCE, PolicyCore

SOUND = (
    "an answer is made by `lend(give_back_at, reason, **numbers)` or `keep(reason, **numbers)`; at the end of the data, with hybrid "
    "replicas only and before anything was measured, too: look for divisions by what may be 0, and for numbers that grow without a limit"
)
NO_RETURN = "a method without a `return` on some way through it answers None: look for an `if` without an `else`, and return there, too"
RAISES = (
    "a policy must answer whatever it is asked: look for what is not there yet, 0 or empty in such a run (view.mean_train_s, view.wait_s)"
)
REPORT = "please report this: it is a bug of ours"


@dataclass
class Trial:
    """What came of the scripts."""

    played: list[Played] = field(default_factory=list)
    """Runs that the policy saw to their ends."""
    long: Played | None = None
    boundary_s: list[float] = field(default_factory=list)
    """Seconds of processor time that each boundary took."""
    other_s: float = 0.0
    others: int = 0

    def traces(self) -> dict[str, list[str]]:
        """By run: everything that the policy said, as text."""
        return {played.name: said(played.entries) for played in self.played}


def said(entries: Sequence[Entry]) -> list[str]:
    """The decisions among entries, each in one line."""
    return [f"{entry.cause} {told(entry)} {encode(entry.event).hex()}" for entry in entries if entry.derived and entry.source == SOURCE]


def told(entry: Entry) -> str:
    """A decision in a few words."""
    event = entry.event
    if not isinstance(event, SwitchRequested):
        return event.kind
    what = f"boundary {event.answers}" if event.answers is not None else "in mid-cycle"
    return f"{what}: {'lend' if event.target == 'rollout' else 'do not lend'}, back at {event.give_back_at}, {event.reason}"


def try_scripts(tried: Tried, trial: Trial, scripts: Sequence[Script] = (*SCRIPTS, LONG)) -> Iterator[tuple[str, Finding | None]]:
    """(what is being done, nothing) before each run, and (its name, what was found) after it."""
    for script in scripts:
        yield script.name, None
        yield script.name, _try(tried, script, trial)


def _try(tried: Tried, script: Script, trial: Trial) -> Finding:
    watched = Watched(tried.make())
    play = Play(script, PolicyCore(watched), attached_of(tried.name, tried.source))
    try:
        _play_undisturbed(play)
    except PolicyFailed as error:
        if watched.unsound:
            return _unsound(tried, script, watched.unsound)
        what, where = tried.raised(error)
        happened = f"{what}, {_place(play)}"
        return Finding(script.name, False, expected="an answer to every boundary", happened=happened, where=where, advice=RAISES)
    except (CodecError, LogError) as error:
        if watched.unsound:
            return _unsound(tried, script, watched.unsound)
        where = tried.method("verdict")
        return Finding(script.name, False, "", "an answer that a log can hold", f"{error}, {_place(play)}", where, SOUND)
    if watched.unsound:
        return _unsound(tried, script, watched.unsound)
    trial.boundary_s += watched.boundary_s.values()
    trial.other_s += watched.other_s
    trial.others += watched.others
    played = Played(script.name, tuple(play.entries))
    if script is LONG:
        trial.long = played
    else:
        trial.played.append(played)
    return _counted(script, played, play)


def _play_undisturbed(play: Play) -> None:
    """A collection of garbage in the middle would count as time that the policy thought."""
    collects = gc.isenabled()
    gc.disable()
    try:
        play.play()
    finally:
        if collects:
            gc.enable()


def _counted(script: Script, played: Played, play: Play) -> Finding:
    """Every boundary that it was there for has one answer of it."""
    answers: dict[int, int] = {}
    for entry in played.entries:
        if isinstance(entry.event, SwitchRequested) and entry.event.answers is not None:
            answers[entry.event.answers] = answers.get(entry.event.answers, 0) + 1
    asked = play.view.boundaries_decided
    wrong = [version for version in range(asked) if answers.get(version, 0) != 1]
    if wrong:
        happened = f"boundary {wrong[0]} has {answers.get(wrong[0], 0)}"
        return Finding(script.name, False, expected="one answer a boundary", happened=happened, advice=REPORT)
    lends = sum(isinstance(entry.event, SwitchStarted) and entry.event.target == "rollout" for entry in played.entries)
    return Finding(script.name, True, f"{asked} boundaries, {lends} lends")


def _place(play: Play) -> str:
    boundary = play.view.boundary
    where = "before the first boundary" if boundary is None else f"at boundary {boundary.version}"
    return f"{where} (entry {len(play.entries)}, {len(play.view.books.ready)} samples ready, {len(play.view.books.in_flight)} in flight)"


def _unsound(tried: Tried, script: Script, unsound: Sequence[Unsound]) -> Finding:
    first = unsound[0]
    more = f"; {len(unsound) - 1} more such answers in this run" if len(unsound) > 1 else ""
    advice = NO_RETURN if first.got == "None" else SOUND
    happened = f"{first.method} answered {first.got} at boundary {first.version}{more}"
    return Finding(script.name, False, expected=first.expected, happened=happened, where=tried.method(first.method), advice=advice)
