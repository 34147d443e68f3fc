"""Candidates: policies that somebody asked for, until they have attached or were refused.

PolicyRequested ─▶ started, one at a time a kind ─┬─ PolicyAttached(request): its process is handed over to the keeper
                                                  └─ it fails, or hangs and is killed ─▶ PolicyRefused, and nothing has changed
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bus.entry import Entry
from bus.errors import ConfigError
from bus.events import Event, PolicyAttached, PolicyRefused, PolicyRequested
from services.config import SupervisorConfig
from services.launcher.children import Kept
from services.launcher.protocol import Handle, Launcher, RunPlace, ServiceSpec
from services.launcher.restarts import Restarts
from services.policy.core import SOURCE
from services.policy.roster import Roster
from services.policy.source import check_label, label_like, short_name
from services.policy.trial import Stage, Told, read_trial, trial_file

logger = logging.getLogger(__name__)

LONGEST_TRIAL = 20
"""A candidate that gets on, but does not get there, is given up after so many times `candidate_s`."""
MAX_SHADOWS = 32
MAX_DETAIL = 4_000
"""Characters of a refusal's detail: the end of it."""

Say = Callable[[Event, int, str], None]
"""Appends an event with its cause; the source is that of the policy in question, for who has no source of its own."""


@dataclass
class OnTrial:
    """A candidate."""

    request: int
    asked: PolicyRequested
    child: Kept
    since: float
    """When it last got on."""
    told: Told = field(default_factory=Told)
    late: str = ""
    """Why it was killed."""


class Trials:
    """Of one run. `drain` reads the log to its end, so that `attached` and `roster` know of it."""

    def __init__(
        self,
        place: RunPlace,
        launcher: Launcher,
        config: SupervisorConfig,
        roster: Roster,
        say: Say,
        drain: Callable[[], None],
        clock: Callable[[], float],
        make_token: Callable[[], str],
    ) -> None:
        self.by_source: dict[str, OnTrial] = {}
        """Those on their way, by the source under which they will attach."""
        self.ended = False
        """The run is over: nothing is refused any more."""
        self._place = place
        self._launcher = launcher
        self._config = config
        self._roster = roster
        self._say = say
        self._drain = drain
        self._clock = clock
        self._make_token = make_token
        self._begun: dict[int, None] = {}
        """Requests that were begun, or refused."""

    def attached(self, entry: Entry, event: PolicyAttached) -> Kept | None:
        """The candidate that this is the first word of, if it is one's: it is none any more."""
        trial = self.by_source.get(entry.source)
        if trial is None or trial.child.token != event.token:
            return None
        del self.by_source[entry.source]
        self._forget(trial)
        trial.child.spec = ServiceSpec(SOURCE, trial.child.spec.name, request=trial.request)
        return trial.child

    def look(self) -> None:
        """Those that have ended, or do not get on."""
        for source, trial in list(self.by_source.items()):
            handle = trial.child.handle
            assert handle is not None
            code = handle.poll()
            if code is None:
                self._watch(trial, handle)
                continue
            self._drain()
            if not self.ended and self.by_source.get(source) is trial:
                del self.by_source[source]
                self._fail(trial, handle)

    def carry_out(self, detach: Callable[[str, int], str], *, may_replace: bool) -> None:
        """Begins what is open, in the order in which it was asked for. `may_replace`: nobody else is on the way to be active.

        `detach` lets a shadow go, by its label, and says why it cannot.
        """
        waits = {trial.asked.action == "shadow" for trial in self.by_source.values()} | (set() if may_replace else {False})
        for position, asked in list(self._roster.open.items()):
            is_shadow = asked.action == "shadow"
            if position in self._begun:
                continue
            if asked.action == "detach":
                self._begun[position] = None
                fault = detach(asked.label, position)
                if fault:
                    self._refuse(position, asked, "attach", fault)
            elif is_shadow not in waits:
                self._try(position, asked)
                waits |= {trial.asked.action == "shadow" for trial in self.by_source.values()}

    def _try(self, position: int, asked: PolicyRequested) -> None:
        """Starts a candidate, or says why there is none."""
        try:
            label = self._label_for(asked)
        except ConfigError as error:
            self._refuse(position, asked, "attach", str(error))
            return
        self._begun[position] = None
        trial_file(self._place.folder, position).unlink(missing_ok=True)
        child = Kept(ServiceSpec(SOURCE, label, request=position, candidate=True), Restarts(self._config))
        token = self._make_token()
        child.spawned(self._launcher.spawn(replace(child.spec, token=token)), self._clock(), token)
        self.by_source[child.spec.source] = OnTrial(position, asked, child, self._clock())

    def _label_for(self, asked: PolicyRequested) -> str:
        """The label under which it is to attach; none for an active one. Raises ConfigError for what cannot be."""
        shadows = self._roster.shadows
        if asked.action == "promote" and asked.label not in shadows:
            raise ConfigError(f"there is no shadow {asked.label!r}: there are {', '.join(shadows) or 'none'}")
        if asked.action != "shadow":
            return ""
        if len(shadows) >= MAX_SHADOWS:
            raise ConfigError(f"{MAX_SHADOWS} shadows watch this run already: let one go with `swingshift policy detach`")
        label = asked.label or self._roster.free_label(label_like(short_name(asked.name)))
        check_label(label)
        if label in shadows:
            raise ConfigError(f"there is a shadow {label!r} already: choose another label, or let it go with `swingshift policy detach`")
        return label

    def _fail(self, trial: OnTrial, handle: Handle) -> None:
        """Its exit, verified: it had not attached, and will not."""
        told = read_trial(self._place.folder, trial.request)
        detail = told.detail or trial.late or handle.how_it_ended()
        self._refuse(trial.request, trial.asked, told.stage, detail)
        self._forget(trial)

    def _forget(self, trial: OnTrial) -> None:
        trial_file(self._place.folder, trial.request).unlink(missing_ok=True)

    def _watch(self, trial: OnTrial, handle: Handle) -> None:
        """A candidate that does not get on is killed."""
        now, limit_s = self._clock(), self._config.candidate_s
        told, waits_for = read_trial(self._place.folder, trial.request), handle.waits_for()
        if told != trial.told or waits_for:
            trial.told, trial.since = told, now
        stands_still = now - trial.since > limit_s
        if self.ended or trial.late or not (stands_still or now - trial.child.spawned_at > LONGEST_TRIAL * limit_s):
            return
        limit_s = limit_s if stands_still else LONGEST_TRIAL * limit_s
        how_far = f"for it waited for {waits_for}" if waits_for else f"at entry {told.position}"
        trial.late = f"it was not ready within {limit_s:g} s (supervisor.candidate_s), {how_far}, and was killed"
        if not handle.kill():
            logger.warning("a candidate hangs and cannot be killed: request=%d; run it without --in-process", trial.request)

    def _refuse(self, position: int, asked: PolicyRequested, stage: Stage, detail: str) -> None:
        self._begun[position] = None
        logger.warning("policy refused: request=%d policy=%s stage=%s detail=%s", position, asked.name, stage, detail)
        refused = PolicyRefused(request=position, name=asked.name, label=asked.label, stage=stage, detail=detail[-MAX_DETAIL:])
        self._say(refused, position, SOURCE)
