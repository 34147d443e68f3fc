"""Keeps a run's policy processes: the active one, the shadows, and candidates that somebody asked for.

    PolicyRequested ─▶ candidate ─┬─ PolicyAttached(request): it takes the place of the one before, which ends by itself
       (one at a time a source)   └─ it fails, hangs or is killed: PolicyRefused, and nothing has changed
    lost ─▶ ServiceLost ─▶ the newest one that attached is started again
    silent after a boundary's deadline ─▶ killed, so lost

One that was lost is started again also while a candidate is on its way: it may only follow the epoch that its keeper knows as the newest,
so that, whoever is first, the newer choice counts in the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from bus.entry import Entry
from bus.events import (
    DeadlineMissed,
    PolicyAttached,
    PolicyDetached,
    RunEnded,
    ServiceLost,
    ShadowVerdict,
    SwitchRequested,
)
from bus.log import WHATEVER
from bus.requests import ANSWERING
from services.config import SupervisorConfig
from services.exit_codes import FENCED, MISTAKEN
from services.launcher.children import Kept, new_token
from services.launcher.protocol import Handle, Launcher, RunPlace, ServiceSpec
from services.launcher.restarts import Restarts
from services.launcher.trials import Say, Trials
from services.policy.core import SOURCE, source_of
from services.policy.roster import Roster

logger = logging.getLogger(__name__)

HANG_S = 1.0
"""After its deadline, how long a policy may be silent before it is taken for hanging."""
RECOVERIES = 4
"""So many times `candidate_s`, one that was restarted may be silent before it is taken for hanging."""
LEAVING_S = 5.0
"""How long one that was replaced, or is to end, may take to end by itself."""
VERDICT = "verdict:"


class Keeper:
    """Of one run. `say` appends; `drain` reads the log to its end, through `take`; `says_losses`: nobody else does."""

    def __init__(
        self,
        place: RunPlace,
        launcher: Launcher,
        config: SupervisorConfig,
        roster: Roster,
        say: Say,
        drain: Callable[[], None],
        clock: Callable[[], float],
        *,
        says_losses: bool = True,
        make_token: Callable[[], str] = new_token,
    ) -> None:
        self.roster = roster
        self.children: dict[str, Kept] = {}
        """Source -> the policy that counts under it, over its incarnations."""
        self.ended = False
        self.given_up: int | None = None
        """Exit code of an active policy that is not started again."""
        self._launcher = launcher
        self._config = config
        self._say = say
        self._drain = drain
        self._clock = clock
        self._says_losses = says_losses
        self._make_token = make_token
        self._trials = Trials(place, launcher, config, roster, say, drain, clock, make_token)
        self._leaving: list[tuple[Handle, float]] = []
        """(process that was replaced, when it is killed)."""
        self._newest_decided = -1
        """Boundary."""

    # --- the beginning and the end ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts those that a run has: at its beginning the plan's, later the newest that attached."""
        active = self.roster.active
        self._keep(ServiceSpec(SOURCE, request=active.event.request if active is not None else 0))
        ending = {asked.label for asked in self.roster.open.values() if asked.action == "detach"}
        for label, shadow in self.roster.shadows.items():
            if label not in ending:
                self._keep(ServiceSpec(SOURCE, label, request=shadow.event.request))

    def running(self) -> list[tuple[str, Handle]]:
        """(source, process) of all that have not ended."""
        handles = [(source, child.handle) for source, child in self.children.items()]
        handles += [(source, trial.child.handle) for source, trial in self._trials.by_source.items()]
        handles += [(SOURCE, handle) for handle, _ in self._leaving]
        return [(source, handle) for source, handle in handles if handle is not None and handle.poll() is None]

    def look(self) -> None:
        """Exits, hanging ones, restarts that are due, requests that are open."""
        self._leaving = [(handle, kill_at) for handle, kill_at in self._leaving if not self._has_left(handle, kill_at)]
        self._trials.look()
        if not self.ended:
            active = self.children.get(SOURCE)
            is_starting = active is not None and active.handle is not None and not active.epoch
            self._trials.carry_out(self._detach, may_replace=not is_starting)
        for child in list(self.children.values()):
            self._look_after(child)

    # --- the log -----------------------------------------------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Takes in one entry."""
        event = entry.event
        if type(event) in ANSWERING:
            return
        self.roster.apply(entry)
        match event:
            case PolicyAttached():
                self._attach(entry, event)
            case PolicyDetached():
                self._let_go(entry.source)
            case DeadlineMissed() if event.key.startswith(VERDICT):
                self._suspect(self.children.get(SOURCE))
                self._decided(int(event.key.removeprefix(VERDICT)))
            case SwitchRequested(answers=int(version)):
                self._decided(version)
            case ShadowVerdict(answers=int(version)) if entry.source in self.children:
                self.children[entry.source].answered = version
            case RunEnded():
                self.ended = self._trials.ended = True
            case _:
                pass
        if entry.derived and entry.source in self.children:
            self._heard(self.children[entry.source], entry.epoch)

    def _attach(self, entry: Entry, event: PolicyAttached) -> None:
        newcomer = self._trials.attached(entry, event)
        if newcomer is not None:
            self._replace(newcomer)
        child = self.children.get(entry.source)
        if child is not None and child.handle is not None and event.token == child.token:
            child.epoch, child.cause = entry.epoch, entry.position
        if event.mode == "active" and event.label and event.label not in self.roster.shadows:
            self._leave(self.children.get(source_of(event.label, "shadow")))

    def _replace(self, newcomer: Kept) -> None:
        """The newcomer counts; the one before knows it from the log, or from its next append."""
        source = newcomer.spec.source
        self._let_go(source)
        self.children[source] = newcomer
        if source == SOURCE:
            self.given_up = None

    def _let_go(self, source: str) -> None:
        """It ends by itself, or is killed when it does not."""
        child = self.children.pop(source, None)
        if child is not None and child.handle is not None:
            self._leaving.append((child.handle, self._clock() + LEAVING_S))

    def _leave(self, child: Kept | None) -> None:
        """It is to say its last word, and not to come back."""
        if child is None:
            return
        child.leaves = True
        child.suspect_at = self._clock() + LEAVING_S
        if child.handle is None:
            self._say_lost(child, restarting=False, detail="it was to end")
            self.children.pop(child.spec.source, None)

    def _heard(self, child: Kept, epoch: int) -> None:
        if child.epoch == epoch:
            child.spoke = True
            child.suspect_at = child.suspect_at if child.leaves else None

    def _suspect(self, child: Kept | None) -> None:
        if child is not None and child.epoch and child.suspect_at is None:
            # One that has not decided anything yet may still be reading a long log.
            child.suspect_at = self._clock() + (HANG_S if child.spoke else RECOVERIES * self._config.candidate_s)

    def _decided(self, version: int) -> None:
        """A boundary was decided: shadows that were there answer it, too."""
        if version <= self._newest_decided:
            return
        self._newest_decided = version
        for child in self.children.values():
            if child.spec.name and child.answered < version:
                self._suspect(child)

    def _detach(self, label: str, request: int) -> str:
        """Lets a shadow go; returns why it cannot."""
        if label not in self.roster.shadows:
            return f"there is no shadow {label!r}: there are {', '.join(self.roster.shadows) or 'none'}"
        source = source_of(label, "shadow")
        self._leave(self.children.get(source) or Kept(ServiceSpec(SOURCE, label), Restarts(self._config), cause=request))
        return ""

    # --- processes ---------------------------------------------------------------------------------------------------------------

    def _keep(self, spec: ServiceSpec) -> None:
        child = self.children[spec.source] = Kept(spec, Restarts(self._config))
        self._spawn(child)

    def _spawn(self, child: Kept) -> None:
        token = self._make_token()
        child.spawned(self._launcher.spawn(replace(child.spec, token=token)), self._clock(), token)
        child.suspect_at, child.hangs, child.spoke = None, False, False

    def _has_left(self, handle: Handle, kill_at: float) -> bool:
        if handle.poll() is not None:
            return True
        if self._clock() >= kill_at and not self.ended:
            handle.kill()
        return False

    def _look_after(self, child: Kept) -> None:
        code = child.handle.poll() if child.handle is not None else None
        if child.handle is not None and code is not None:
            self._lose(child, child.handle, code)
        elif self.ended:
            return
        elif child.handle is not None and child.suspect_at is not None and child.suspect_at <= self._clock():
            logger.warning("hangs: source=%s epoch=%d", child.spec.source, child.epoch)
            child.suspect_at = None
            child.hangs = child.handle.kill()
        elif child.due_at is not None and child.due_at <= self._clock():
            child.spec = replace(child.spec, after=self._newest_epoch() if child.spec.source in self._trials.by_source else WHATEVER)
            self._spawn(child)

    def _newest_epoch(self) -> int:
        """Of those that were active."""
        return self.roster.active.epoch if self.roster.active is not None else 0

    def _lose(self, child: Kept, handle: Handle, code: int) -> None:
        """An exit, verified: what it said last is in the log, perhaps not yet read; whether it was replaced, or the run ended, too."""
        self._drain()
        source = child.spec.source
        if self.ended or self.children.get(source) is not child:
            return
        child.handle = None
        # One that was to follow another may have come too late because of the last word of its own predecessor only.
        if code == FENCED and (child.epoch or child.spec.after == WHATEVER):
            logger.warning("replaced by another incarnation, which is not ours: source=%s", source)
            self.given_up = FENCED if source == SOURCE else self.given_up
            return
        delay = None if code == MISTAKEN or child.leaves else child.restarts.delay_s(self._clock() - child.spawned_at)
        how = handle.how_it_ended()
        detail = f"it let a boundary's deadline pass, said nothing after it, and was killed: {how}" if child.hangs else how
        logger.warning("policy ended: source=%s epoch=%d detail=%s restart_in_s=%s", source, child.epoch, detail, delay)
        self._say_lost(child, restarting=delay is not None, detail=detail)
        if delay is not None:
            child.due_at = self._clock() + delay
        elif source == SOURCE:
            self.given_up = code
        else:
            del self.children[source]

    def _say_lost(self, child: Kept, *, restarting: bool, detail: str) -> None:
        source = child.spec.source
        if self._says_losses:
            self._say(ServiceLost(service=source, epoch=child.epoch, restarting=restarting, detail=detail), child.cause, SOURCE)
        elif child.spec.name and not restarting:
            self._say(PolicyDetached(name=child.spec.name, reason=f"lost: {detail}"), child.cause, source)
