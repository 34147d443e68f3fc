"""Which samples a step takes when their age is limited (`max_version_lag`), and when it has to wait for one that is getting too old.

A sample's lag is the version that is trained minus the oldest weights in it; it grows with each publication, also while the sample waits.

    drop    a ready sample over the limit is dropped: its place is free at once, so another one is started
    wait    the oldest are trained first; a step is not filled with samples that could wait while those that cannot, and are still being
            generated, would not fit into the steps that are left of the cycle

Without a limit samples are trained in log order. One that is over the limit in spite of waiting (the staleness limit was raised on the
live run) is dropped, too: nothing over the limit is ever trained.
"""

from __future__ import annotations

from bus.books import Books, ReadySample


def too_old(books: Books) -> ReadySample | None:
    """The first ready sample that may no longer be trained."""
    limit = _limit(books)
    if limit is None:
        return None
    return next((sample for sample in books.ready.values() if books.version - sample.oldest_version > limit), None)


def choose(books: Books) -> list[ReadySample]:
    """The samples of the next step, as many as there are, at most `required_samples`."""
    assert books.plan is not None
    ready = list(books.ready.values())
    if _limit(books) is not None and books.plan.on_version_lag == "wait":
        ready.sort(key=lambda sample: sample.oldest_version)  # stable: log order among equals
    return ready[: books.plan.required_samples]


def missing(books: Books, chosen: list[ReadySample]) -> int:
    """Samples in flight that must become ready before a step of `chosen`; 0: it need not wait."""
    plan, limit = books.plan, _limit(books)
    assert plan is not None
    if limit is None or plan.on_version_lag != "wait":
        return 0
    last_chance = books.version - limit
    if all(sample.oldest_version <= last_chance for sample in chosen):
        return 0
    urgent = sum(version <= last_chance for version in books.in_flight.values())
    steps_left = plan.trigger_parameter_sync_step - books.steps_since_publication - 1
    return max(0, urgent - steps_left * plan.required_samples)


def _limit(books: Books) -> int | None:
    assert books.plan is not None
    return books.plan.max_version_lag
