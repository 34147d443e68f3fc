"""Nodes that join while a run is on its way: each is asked what the others were asked, before anything of the run is started on it.

    placed on a node ─▶ known? ─▶ it lacks nothing ─▶ started there
            ▲             │   └─▶ it lacks something ─┐
            │             └─▶ nobody has asked it yet │ ─▶ the same questions, there ─▶ known
            └──────────── elsewhere ◀─────────────────┘

Ray puts a service, or a reserved part that has lost its node, wherever there is room, and knows nothing of folders and models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial

from bus.errors import SwingshiftError
from services.launcher.on_ray.asking import Question
from services.launcher.on_ray.orders import Where
from services.launcher.on_ray.remote import Failed, Outcome, Said, Then
from services.launcher.protocol import Say

logger = logging.getLogger(__name__)

AGAIN_S = 2.0
"""After what is unclear, how long until the node is asked again."""
MOST_TRIES = 3
"""So often a node is asked that does not get to answering."""

Lacks = Mapping[str, str]
"""Service -> why it cannot run on a node; nothing of those that can."""


@dataclass(frozen=True, slots=True)
class Survey:
    """How nodes of a run are asked, and what those lack that were asked at its start."""

    known: Mapping[str, Lacks]
    """Id of a node -> what it lacks."""
    question: Callable[[], AbstractContextManager[str]]
    """What to ask, which holds while its block runs. Raises SwingshiftError."""
    look: Question
    judge: Callable[[str, str], Lacks]
    """A node's name and its answer -> what it lacks."""
    services: Sequence[str]
    """All of the run's: what is said of a node that cannot even answer is said of all."""
    patience_s: float
    say: Say


@dataclass(slots=True)
class _Asking:
    """A node that is being asked."""

    where: Where
    waiting: list[Callable[[], None]]
    open: ExitStack = field(default_factory=ExitStack)
    """The question."""
    tries: int = 0


class Newcomers:
    """Of one run. Everything in the launcher's thread, but for `close`, which comes after it."""

    def __init__(self, survey: Survey, ask: Callable[[str, str, Then], None], later: Callable[[float, Callable[[], None]], None]) -> None:
        """`ask` puts a question, as text, on a node."""
        self._survey = survey
        self._ask = ask
        self._later = later
        self._lacks: dict[str, Lacks] = {}
        """Of nodes that were not there at the start."""
        self._asking: dict[str, _Asking] = {}
        self._told: set[tuple[str, str]] = set()

    def lack(self, node: str, services: Sequence[str]) -> str | None:
        """Why a node is not for these services, which are to be together; empty: it is. None: nobody knows yet."""
        lacks = self._lacks.get(node, self._survey.known.get(node))
        return None if lacks is None else next((lacks[service] for service in services if service in lacks), "")

    def barred(self, services: Sequence[str]) -> tuple[str, ...]:
        """Ids of nodes that have joined and are not for these services."""
        return tuple(node for node in self._lacks if self.lack(node, services))

    def ask(self, where: Where, then: Callable[[], None]) -> None:
        """Has a node asked; calls `then` when it is known."""
        if where.node in self._asking:
            self._asking[where.node].waiting.append(then)
            return
        asking = self._asking[where.node] = _Asking(where, [then])
        self._put(asking)
        self._later(self._survey.patience_s, partial(self._give_up, asking, f"it did not answer within {self._survey.patience_s:g} s"))

    def tell(self, where: Where, services: Sequence[str], why: str) -> None:
        """The user hears once of a node that services were put on and cannot be on."""
        names = " and ".join(dict.fromkeys(services))
        if (where.node, names) not in self._told:
            self._told.add((where.node, names))
            logger.warning("not for everybody: node=%s services=%s why=%s", where.label, names, why)
            self._survey.say(
                f"node {where.label} is not for {names}, another one is looked for: {why} "
                "(it is asked again when it joins anew: `ray stop`, `ray start` there)"
            )

    def close(self) -> None:
        """Takes away what was written for questions that nobody will answer any more."""
        for asking in self._asking.values():
            asking.open.close()
        self._asking.clear()

    def _put(self, asking: _Asking) -> None:
        if not self._is_open(asking):
            return
        try:
            text = asking.open.enter_context(self._survey.question())
        except SwingshiftError as error:
            # The server, or the folder, is out of the driver's own reach: whether that may last is not for this to say.
            logger.warning("a node cannot be asked yet: node=%s error=%s", asking.where.label, error)
            self._later(AGAIN_S, partial(self._put, asking))
            return
        asking.tries += 1
        self._ask(asking.where.node, text, partial(self._hear, asking))

    def _hear(self, asking: _Asking, outcome: Outcome) -> None:
        if not self._is_open(asking):
            return
        asking.open.close()
        match outcome:
            case Said(text):
                self._know(asking, self._survey.judge(asking.where.label, text))
            case Failed(reason):
                self._give_up(asking, reason)
            case _ if asking.tries >= MOST_TRIES:
                self._give_up(asking, outcome.reason)
            case _:
                self._later(AGAIN_S, partial(self._put, asking))

    def _give_up(self, asking: _Asking, why: str) -> None:
        if self._is_open(asking):
            asking.open.close()
            self._know(asking, dict.fromkeys(self._survey.services, f"nothing starts there: {why}"))

    def _know(self, asking: _Asking, lacks: Lacks) -> None:
        del self._asking[asking.where.node]
        self._lacks[asking.where.node] = lacks
        for then in asking.waiting:
            then()

    def _is_open(self, asking: _Asking) -> bool:
        return self._asking.get(asking.where.node) is asking
