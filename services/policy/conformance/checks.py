"""What must hold of a policy whatever it decides. Each check leads it anew through the runs that it has been tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil

from bus.codec import encode
from bus.errors import CodecError, ConfigError, PolicyFailed, SwingshiftError
from bus.events import Event, SwitchRequested
from bus.host import rebuild
from bus.seal import SealBroken, sealed
from bus.snapshot import attributes, freeze, thaw
from services.policy.conformance.finding import Finding
from services.policy.conformance.led import Led, Moment, Played
from services.policy.conformance.trial import SOUND, Trial
from services.policy.conformance.tried import Tried
from services.policy.core import PolicyCore

BOUNDARY_S = 0.002
"""Processor time that a boundary may cost in a run, 99 of 100 times."""
TOO_LONG_S = 0.1
"""Processor time of one boundary that fails the test: beyond what another process on the machine can explain."""
GROWTH_BYTES = 1.0
"""Most by which a policy's state may grow with each boundary, when it has seen 200 of them."""
NO_RUN = "no run came to its end"

Check = Callable[[Tried, Trial], Finding]


def _core(tried: Tried) -> PolicyCore:
    return PolicyCore(tried.make())


def says_the_same(tried: Tried, trial: Trial) -> Finding:
    """A second instance, in the same process, after the first."""
    check = "says the same from the same log"
    for played in trial.played:
        led = Led(_core(tried), played)
        for moment in led.moments():
            answer = led.core.decide()
            if not _same(answer, moment.recorded):
                return _different(check, tried, played, moment, answer, "another instance of it, on the same log, answered", _SHARED)
    return Finding(check, True, f"{_asked(trial)} answers compared")


def changes_nothing(tried: Tried, trial: Trial) -> Finding:
    """What only answers leaves policy and view as they are."""
    check = "answering changes nothing"
    advice = "only `decided` (and `lent`) may change something: verdict is asked as often as somebody wants to know, also in trial"
    for played in trial.played:
        led = Led(_core(tried), played)
        for moment in led.moments():
            # The view is large: it is compared where it is looked at closely.
            before, view = _looks(led.core), freeze(led.core.view) if moment.is_boundary else b""
            led.core.decide()
            after = _looks(led.core)
            changed = [name for name in after if after[name] != before.get(name)]
            if changed:
                name = changed[0]
                happened = (
                    f"self.{name} was {before.get(name, 'not there')}, and is {after[name]} after it was asked, {_at(played, moment)}"
                )
                return Finding(check, False, "", "a policy that is as it was", happened, tried.attribute(name), advice)
            if view and freeze(led.core.view) != view:
                happened = f"the view has changed after it was asked, {_at(played, moment)}"
                return Finding(check, False, "", "a view that is as it was", happened, tried.method("verdict"), advice)
    return Finding(check, True)


def goes_on_after_a_restart(tried: Tried, trial: Trial) -> Finding:
    """A process that is killed at a boundary, and its successor, which has the log and nothing else."""
    check, restarts = "goes on after a restart", 0
    for played in trial.played:
        for moment in [moment for moment in Led(_core(tried), played).moments() if moment.is_boundary]:
            core = _core(tried)
            rebuild(core, [entry for entry in played.entries if entry.position <= moment.position])
            answer = core.decide()
            restarts += 1
            if not _same(answer, moment.recorded):
                return _different(check, tried, played, moment, answer, "a process that was started there answered", _MEMORY)
    return Finding(check, True, f"at each of {restarts} boundaries")


def survives_snapshots(tried: Tried, trial: Trial) -> Finding:
    """Written down and read back at every boundary, before and after it is decided."""
    check, snapshots = "survives snapshot and restore", 0
    for played in trial.played:
        led = Led(_core(tried), played)
        seen = -1
        for moment in led.moments():
            try:
                if moment.is_boundary or moment.version != seen:
                    led.core = thaw(freeze(led.core), _core(tried))
                    snapshots += 1
            except CodecError as error:
                where = tried.attribute(_attribute_of(str(error)))
                what = str(error).replace("_policy.", "self.", 1)
                return Finding(check, False, "", "a state that can be written down", f"{what}, {_at(played, moment)}", where, _PLAIN)
            seen = moment.version
            answer = led.core.decide()
            if not _same(answer, moment.recorded):
                return _different(check, tried, played, moment, answer, "what was restored from a snapshot answered", _PLAIN)
    return Finding(check, True, f"{snapshots} of them")


def looks_at_nothing_else(tried: Tried, trial: Trial) -> Finding:
    """No clock, file, socket, random number or environment is touched."""
    check = "looks at nothing but the log"
    if tried.is_verl:
        return Finding.not_checked(check, "it runs in a process of its own")
    for played in trial.played:
        led = Led(_core(tried), played, _sealed)
        try:
            for _ in led.moments():
                with sealed():
                    led.core.decide()
        except (PolicyFailed, SealBroken) as error:
            cause = error if isinstance(error, SealBroken) else error.__cause__
            advice = "seconds come from the view; what else it needs is a setting; nothing is random: rotate by view.boundary.version"
            return Finding(check, False, f"in {played.name}", "no clock, file, socket, random number", str(cause), "", advice)
    return Finding(check, True, "no clock, file, socket, random number or environment")


def remembers_a_bounded_amount(tried: Tried, trial: Trial) -> Finding:
    """A run of weeks fits into its memory, and into a snapshot."""
    check = "remembers a bounded amount"
    if tried.is_verl:
        return Finding.not_checked(check, "its memory is in a process of its own")
    if trial.long is None:
        return Finding.not_checked(check, "the long run failed")
    led, sizes = Led(_core(tried), trial.long), dict[int, int]()
    for moment in led.moments():
        if moment.version not in sizes:
            try:
                sizes[moment.version] = len(freeze(led.core.policy))
            except CodecError as error:
                return Finding.not_checked(check, f"self.{error}")
    last = max(sizes)
    half = last // 2
    if sizes[last] - sizes[half] > GROWTH_BYTES * (last - half):
        happened = f"{sizes[half]} bytes at boundary {half}, {sizes[last]} at boundary {last}"
        name = _longest(led.core)
        advice = "keep the newest few: collections.deque(maxlen=16)"
        return Finding(
            check, False, "", "a state that stops growing", f"{happened}; self.{name} is the largest", tried.attribute(name), advice
        )
    return Finding(check, True, f"{sizes[last]} bytes after {last} boundaries")


def answers_in_time(tried: Tried, trial: Trial) -> Finding:
    """Of processor time, for the machine may be busy with something else."""
    check = "answers in time"
    ordered = sorted(trial.boundary_s)
    if not ordered:
        return Finding.not_checked(check, NO_RUN)
    p99, most = ordered[ceil(0.99 * len(ordered)) - 1], ordered[-1]
    measured = f"{p99 * 1e3:.2f} ms a boundary in 99 of 100 cases, {most * 1e3:.2f} ms at most"
    if most > TOO_LONG_S:
        expected = f"{BOUNDARY_S * 1e3:g} ms; over {TOO_LONG_S * 1e3:g} ms it fails, for the trainer stands still meanwhile"
        advice = "keep a running sum or the newest few instead of going through everything again"
        return Finding(check, False, "", expected, measured, tried.method("verdict"), advice)
    over = f"; a run wants {BOUNDARY_S * 1e3:g} ms" if p99 > BOUNDARY_S else ""
    return Finding(check, True, measured + over)


def says_the_same_everywhere(traces: Mapping[str, list[str]], others: Mapping[str, list[str]], tried: Tried) -> Finding:
    """In two processes with other seeds of the hashes: the order of a set is another there."""
    check = "says the same in every process"
    if not traces:
        return Finding.not_checked(check, NO_RUN)
    advice = "go through a list or a dict, not through a set; compare values, not hash() or id()"
    for run, here in traces.items():
        there = others.get(run, [])
        for one, other in zip(here, there, strict=False):
            if one != other:
                happened = f"{_short(one)} in one process, {_short(other)} in another, {run}"
                return Finding(check, False, "", "the same answers", happened, tried.method("verdict"), advice)
        if len(here) != len(there):
            happened = f"{len(here)} answers in one process, {len(there)} in another, {run}"
            return Finding(check, False, "", "the same answers", happened, tried.method("verdict"), advice)
    return Finding(check, True, "under two seeds of the hashes, in two time zones")


CHECKS: dict[str, Check] = {
    "says the same from the same log": says_the_same,
    "answering changes nothing": changes_nothing,
    "goes on after a restart": goes_on_after_a_restart,
    "survives snapshot and restore": survives_snapshots,
    "looks at nothing but the log": looks_at_nothing_else,
    "remembers a bounded amount": remembers_a_bounded_amount,
    "answers in time": answers_in_time,
}
"""By name. All lead the policy through the runs that it came to the end of."""

_SHARED = "keep what it remembers in self, set in __init__: what lies in the class or in the module is shared by all instances"
_MEMORY = "it remembers something that does not follow from the log: change self in `decided` only, by what the view says"
_PLAIN = "keep numbers, texts, lists, dicts, tuples, deques and data classes of the file in self, and nothing else"


def run_checks(tried: Tried, trial: Trial) -> Iterator[tuple[str, Finding | None]]:
    """(what is being done, nothing) before each check, and (its name, what was found) after it."""
    for name, check in CHECKS.items():
        yield name, None
        yield name, _checked(name, check, tried, trial)


def _checked(name: str, check: Check, tried: Tried, trial: Trial) -> Finding:
    if not trial.played:
        return Finding.not_checked(name, NO_RUN)
    try:
        return check(tried, trial)
    except (PolicyFailed, ConfigError) as error:
        what, where = tried.raised(error)
        expected = "what it answered before, on the same log"
        return Finding(name, False, expected=expected, happened=f"this time it raised {what}", where=where, advice=_SHARED)
    except SwingshiftError as error:
        return Finding(name, False, expected="answers that a log can hold", happened=str(error), advice=SOUND)


def _sealed(action: Callable[[], None]) -> None:
    with sealed():
        action()


def _same(answer: Event | None, recorded: Event | None) -> bool:
    if answer is None or recorded is None:
        return answer is recorded
    return answer.kind == recorded.kind and encode(answer) == encode(recorded)


def _looks(core: PolicyCore) -> dict[str, str]:
    return {name: repr(value) for name, value in attributes(core.policy).items()}


def _longest(core: PolicyCore) -> str:
    found = attributes(core.policy)
    return max(found, key=lambda name: len(repr(found[name])), default="")


def _attribute_of(message: str) -> str:
    """Of `_policy.seen is a set: …`: `seen`."""
    return message.partition(" is a ")[0].rpartition(".")[2]


def _asked(trial: Trial) -> int:
    return sum(len(trace) for trace in trial.traces().values())


def _at(played: Played, moment: Moment) -> str:
    return f"at boundary {moment.version}, entry {moment.position}, {played.name}"


def _different(check: str, tried: Tried, played: Played, moment: Moment, answer: Event | None, who: str, advice: str) -> Finding:
    happened = f"{who} {_words(answer)}, {_at(played, moment)}"
    return Finding(check, False, "", f"{_words(moment.recorded)}, as before", happened, tried.method("verdict"), advice)


def _words(event: Event | None) -> str:
    if not isinstance(event, SwitchRequested):
        return "nothing" if event is None else event.kind
    numbers = ", ".join(f"{name} {value:g}" for name, value in event.evidence.items())
    what = "lend" if event.target == "rollout" else "do not lend"
    return f"“{what}, back at {event.give_back_at}, {event.reason}{f' ({numbers})' if numbers else ''}”"


def _short(trace: str) -> str:
    """Without its cause and its bytes."""
    return f"“{trace.partition(' ')[2].rpartition(' ')[0]}”"
