"""Which policies a run has, by hand-written logs."""

from __future__ import annotations

from bus.entry import Draft
from bus.events import Event, PolicyAttached, PolicyDetached, PolicyRefused, PolicyRequested, RunPlanned, ServiceLost
from bus.memory_log import MemoryLog, MemoryStore
from services.policy.asking import Outcome, ask, wait_for
from services.policy.roster import Roster, roster_of
from tests.policies.logs import plan


class Told:
    """A log of nothing but policies."""

    def __init__(self) -> None:
        self.store = MemoryStore.create(RunPlanned.model_validate(plan()), at=0)
        self.log = MemoryLog(self.store)

    def say(self, source: str, event: Event) -> int:
        return self.store.write(source, 0, [Draft(event, derived=False, cause=0, at=0)])

    def attach(self, name: str, request: int = 0, label: str = "", shadow: str = "") -> None:
        source, mode = (f"policy:{shadow}", "shadow") if shadow else ("policy", "active")
        event = {"name": name, "params": {}, "mode": mode, "code": "", "request": request, "label": label or shadow}
        self.log.attach(source, Draft(PolicyAttached.model_validate(event), derived=False, cause=0, at=0))

    def ask(self, action: str, name: str = "", label: str = "") -> int:
        return ask(self.log, self.request(action, name, label))

    def request(self, action: str, name: str = "", label: str = "") -> PolicyRequested:
        return PolicyRequested.model_validate({"action": action, "name": name, "label": label})

    @property
    def roster(self) -> Roster:
        return roster_of(self.store.entries)


def active_and_former(roster: Roster) -> tuple[str, str]:
    return (
        roster.active.event.name if roster.active is not None else "",
        roster.former.event.name if roster.former is not None else "",
    )


def test_the_newest_that_attached_is_active_and_a_restart_is_no_swap() -> None:
    told = Told()
    told.attach("default")
    told.attach("fixed_ratio", told.ask("swap", "fixed_ratio"))
    told.attach("fixed_ratio", 3)
    assert active_and_former(told.roster) == ("fixed_ratio", "default")
    told.attach("default", told.ask("rollback", "default"))
    assert active_and_former(told.roster) == ("default", "fixed_ratio")
    assert told.roster.open == {}


def test_a_request_is_open_until_it_was_followed_or_refused() -> None:
    told = Told()
    first, second = told.ask("swap", "default"), told.ask("shadow", "default")
    assert list(told.roster.open) == [first, second]
    told.say("supervisor", PolicyRefused(request=first, name="default", stage="load", detail="no"))
    assert list(told.roster.open) == [second]
    told.attach("default", second, shadow="default")
    assert told.roster.open == {}


def test_a_shadow_ends_by_its_last_word_its_loss_for_good_or_its_promotion() -> None:
    told = Told()
    for label in ("a", "b", "c"):
        told.attach("default", told.ask("shadow", "default", label), shadow=label)
    told.ask("detach", label="a")
    told.say("policy:a", PolicyDetached(name="default", reason="asked to end"))
    assert (list(told.roster.shadows), told.roster.open) == (["b", "c"], {})
    told.say("supervisor", ServiceLost(service="policy:b", epoch=1, restarting=True))
    assert list(told.roster.shadows) == ["b", "c"]
    told.say("supervisor", ServiceLost(service="policy:b", epoch=1, restarting=False))
    assert list(told.roster.shadows) == ["c"]
    told.attach("default", told.ask("promote", "default", "c"), label="c")
    assert told.roster.shadows == {}


def test_a_restart_of_a_promoted_one_does_not_end_a_newer_shadow_of_its_label() -> None:
    told = Told()
    told.attach("default", told.ask("shadow", "default", "a"), shadow="a")
    promoted = told.ask("promote", "default", "a")
    told.attach("default", promoted, label="a")
    told.attach("default", told.ask("shadow", "default", "a"), shadow="a")
    told.attach("default", promoted, label="a")
    assert list(told.roster.shadows) == ["a"]


def test_a_free_label_is_one_that_no_shadow_has_had() -> None:
    told = Told()
    told.attach("default", shadow="default")
    told.say("policy:default", PolicyDetached(name="default", reason="asked to end"))
    assert told.roster.free_label("default") == "default-2"
    assert told.roster.free_label("other") == "other"


def test_who_asks_hears_what_came_of_it_or_that_nobody_was_there() -> None:
    told = Told()
    asked = told.request("detach", label="a")
    position = ask(told.log, asked)
    now = iter(range(100))
    waited: list[float] = []
    assert wait_for(told.log, position, asked, 3.0, waited.append, lambda: float(next(now))) is None
    assert waited == [1.0, 2.0]
    told.say("policy:a", PolicyDetached(name="default", reason="asked to end"))
    assert wait_for(told.log, position, asked, 3.0) == Outcome("detached", told.store.entries[-1])
    swap = told.request("swap", "default")
    position = ask(told.log, swap)
    told.say("supervisor", PolicyRefused(request=position, name="default", stage="answer", detail="raised"))
    outcome = wait_for(told.log, position, swap, 3.0)
    assert outcome is not None
    assert (outcome.how, outcome.detail) == ("refused", "raised")
