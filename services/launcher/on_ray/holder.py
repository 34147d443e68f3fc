"""Takes all GPUs of a bundle for those who sit in it: Ray cannot be asked for a part of a certain GPU.

placed in the bundle ─ask─▶ Holder: an actor that has the GPUs, and tells their ids        it dies ─▶ another one
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from services.launcher.on_ray.handle import AGAIN_S
from services.launcher.on_ray.orders import Where
from services.launcher.on_ray.remote import Actor, Gone, Outcome, Said

logger = logging.getLogger(__name__)


class Holder:
    """Of one bundle. Everything in the launcher's thread."""

    def __init__(self, make: Callable[[], Actor], later: Callable[[float, Callable[[], None]], None]) -> None:
        self._make = make
        self._later = later
        self._actor: Actor | None = None
        self._where: Where | None = None
        self._asked: list[Callable[[Where], None]] = []
        self._closed = False

    def ask(self, then: Callable[[Where], None]) -> None:
        """Calls `then` with the node and the GPUs of the bundle, once they are known."""
        if self._where is not None:
            then(self._where)
            return
        self._asked.append(then)
        if self._actor is None:
            self._open()

    def leave(self) -> None:
        """The bundle is to be on another node, and those who asked will ask again."""
        self._asked.clear()
        self._where = None
        actor, self._actor = self._actor, None
        if actor is not None:
            actor.discard()

    def close(self) -> None:
        """Gives the GPUs back."""
        self._closed = True
        if self._actor is not None:
            self._actor.discard()

    def _open(self) -> None:
        self._actor = self._make()
        self._call("where", self._hear_where)

    def _call(self, method: str, hear: Callable[[Outcome], None]) -> None:
        """What comes of it is heard only as long as the same actor is who has the GPUs."""
        actor = self._actor
        if actor is not None:
            actor.call(method, lambda outcome: hear(outcome) if self._actor is actor else None)

    def _hear_where(self, outcome: Outcome) -> None:
        if isinstance(outcome, Said):
            self._where = Where.model_validate_json(outcome.text)
            asked, self._asked = self._asked, []
            for then in asked:
                then(self._where)
            self._watch()
        else:
            self._without_answer(outcome, lambda: self._call("where", self._hear_where))

    def _watch(self) -> None:
        """Nothing ever ends in it, so this is answered again and again, for as long as it lives."""
        if not self._closed:
            self._call("wait", self._hear_wait)

    def _hear_wait(self, outcome: Outcome) -> None:
        if isinstance(outcome, Said):
            self._watch()
        else:
            self._without_answer(outcome, self._watch)

    def _without_answer(self, outcome: Outcome, again: Callable[[], None]) -> None:
        if self._closed:
            return
        if isinstance(outcome, Gone):
            logger.warning("who holds a bundle's GPUs has died, another one does: reason=%s", outcome.reason)
            self._where = None
            self._open()
        else:
            self._later(AGAIN_S, again)
