"""What a core's state says to a person: a dozen lines, each a label and what there is to say of it. Nothing is changed by looking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import fsum

from bus.books import Books
from bus.core import Core
from bus.evaluations import Evaluations
from bus.requests import Requests
from bus.snapshot import attributes
from policies.swings import Swings
from policies.view import ScheduleView
from services.controller.core import ControllerCore
from services.policy.core import PolicyCore
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore

Line = tuple[str, str]
"""(label, text)"""
LABEL_WIDTH = 12
MOST_NAMED = 12
"""Samples, requests and deadlines that one line names; the rest is counted."""


def describe(core: Core) -> list[str]:
    """The state of a core, one line a thing."""
    return [f"{label:<{LABEL_WIDTH}} {text}" for label, text in state_lines(core)]


def state_lines(core: Core) -> list[Line]:
    """The same, as labels and texts."""
    lines = _own_lines(core)
    wanted = [f"{request.key} (of {request.cause})" if request.cause else request.key for request in core.outstanding()]
    if wanted:
        lines.append(("to do", named(wanted, ", ")))
    due = [f"{deadline.key} within {deadline.seconds:g} s" for deadline in core.deadlines()]
    if due:
        lines.append(("deadlines", named(due, ", ")))
    return lines


def _own_lines(core: Core) -> list[Line]:
    match core:
        case TrainerCore():
            return _of(core.books, _trainer, core)
        case RollouterCore():
            return _of(core.books, _rollouter, core)
        case ControllerCore():
            return _of(core.books, _controller, core)
        case PolicyCore():
            return _of(core.view.books, _policy, core)
        case _:
            return [(name.lstrip("_"), repr(value)) for name, value in attributes(core).items()]


def _of(books: Books, lines: Callable[..., list[Line]], core: Core) -> list[Line]:
    return [("plan", "not there yet")] if books.plan is None else [*lines(core), *_changed(books)]


def named(names: Iterable[object], between: str = " ") -> str:
    """Names in a row; many are counted."""
    every = [str(name) for name in names]
    return between.join(every) if len(every) <= MOST_NAMED else f"{between.join(every[:MOST_NAMED])} … ({len(every)} in all)"


# --- what several cores know -------------------------------------------------------------------------------------------------------


def _progress(books: Books) -> Line:
    assert books.plan is not None
    version = "nothing published" if books.version < 0 else f"version {books.version} published"
    since = f"{books.steps_since_publication} of {books.plan.trigger_parameter_sync_step} of the next cycle done"
    return "steps", f"{books.steps_done} of {books.plan.total_steps} done, {version}, {since}"


def _ready(books: Books) -> Line:
    assert books.plan is not None
    return "ready", f"{len(books.ready)}, a step needs {books.plan.required_samples}: {named(books.ready) or '-'}"


def _samples(books: Books) -> Line:
    assert books.plan is not None
    dropped = ", ".join(f"{count} {reason}" for reason, count in books.dropped.items()) or "none"
    of = "" if books.plan.num_prompts is None else f" of {books.plan.num_prompts}"
    return "samples", f"{books.started}{of} started, {len(books.in_flight)} in flight, {books.trained} trained, dropped: {dropped}"


def _batch(books: Books) -> Line:
    batch = books.batch
    return "batch", "none" if batch is None else f"step {batch.step}, {len(batch.samples)} samples: {named(batch.samples)}"


def _evaluation(evaluations: Evaluations) -> list[Line]:
    current, pinned = evaluations.current, evaluations.pinned
    if current is None:
        return []
    where = "waits for a replica" if pinned is None else f"on {pinned.replica}/{pinned.epoch}"
    return [("evaluation", f"version {current.version}, {where}{', out of time' if evaluations.timed_out else ''}")]


def _changed(books: Books) -> list[Line]:
    changed = ", ".join(f"{name}={value}" for name, value in books.settings.changed.items())
    return [("changed", f"on the live run: {changed}")] if changed else []


def _end(books: Books, ended: bool) -> list[Line]:
    marks = [("the run has ended", ended), ("asked to stop", books.stop_requested), ("prompts exhausted", books.exhausted)]
    said = [text for text, holds in marks if holds]
    return [("end", ", ".join(said))] if said else []


# --- trainer -----------------------------------------------------------------------------------------------------------------------


def _trainer(core: TrainerCore) -> list[Line]:
    books = core.books
    waits = ", waits for samples" if core.is_waiting else ""
    devices = f"{'home' if core.home else 'away'}, {'granted' if core.granted else 'not granted'}{waits}"
    saved = [f"step {saved.step} (version {saved.version}, position {saved.position})" for saved in core.kept.saved]
    kept = [batch.step for batch in core.history]
    redo = f"batches of steps {kept[0]} to {kept[-1]} are kept" if kept else "no batch is kept"
    return [
        _progress(books),
        ("devices", devices),
        _batch(books),
        _ready(books),
        _samples(books),
        ("checkpoints", ", ".join(saved) or "none"),
        ("redo", redo),
        *_evaluation(core.evaluations),
        *_end(books, core.ended),
    ]


# --- rollouter ---------------------------------------------------------------------------------------------------------------------


def _rollouter(core: RollouterCore) -> list[Line]:
    books, groups = core.books, core.groups
    batches = f"{books.used_since_publication} in batches since version {books.version}"
    used = f"{len(books.in_flight)} in flight + {len(books.ready)} ready + {batches}"
    lines = [
        _progress(books),
        _samples(books),
        ("in flight", named(books.in_flight) or "-"),
        ("staleness", f"limit {books.limit}: {used}; room for {books.room}"),
        *([("paused", named(core.paused))] if core.paused else []),
        *_routes(core),
    ]
    if groups is not None:
        waiting = [f"{sample}.{answer}" for sample, answer in (*groups.resumed, *groups.fresh)]
        lines.append(("waiting", f"{named(waiting)} for a replica" if waiting else "no answer waits for a replica"))
        lines += [("to score", named(groups.complete))] if groups.complete else []
    return [*lines, *_evaluation(core.evaluation.versions), *_end(books, core.ended)]


def _routes(core: RollouterCore) -> list[Line]:
    lines: list[Line] = []
    for route in core.routes.by_name.values():
        states = [
            ("failed", route.failed),
            ("starting", route.slots == 0),
            ("route cut", route.hybrid and not route.opened),
            (f"route open, swing {route.swing}", route.hybrid and route.opened),
            ("not trusted", route.suspect),
            ("evaluates", route.pinned),
            (f"takes version {route.updating[0] if route.updating else 0}", route.updating is not None),
        ]
        serves = "no weights" if route.serves is None else f"version {route.serves[0]}"
        kind = "hybrid" if route.hybrid else "standalone"
        said = ", ".join([kind, serves, *(text for text, holds in states if holds)])
        load = [request for request, _ in core.requests.open.get(route.name, ())]
        lines.append((f"{route.name}/{route.epoch}", f"{said}; {len(load)} of {route.slots} slots: {named(load) or '-'}"))
    return lines


# --- controller --------------------------------------------------------------------------------------------------------------------


def _controller(core: ControllerCore) -> list[Line]:
    return [
        _progress(core.books),
        ("devices", _holder(core)),
        ("swing", _swing(core)),
        ("boundary", _boundary(core)),
        *_replicas(core),
        _ready(core.books),
        _samples(core.books),
        *_evaluation(core.evaluations),
        *_end(core.books, core.ended),
    ]


def _holder(core: ControllerCore) -> str:
    if core.swing is not None:
        return f"moving, {'still with the trainer' if core.home else 'gone from the trainer'}"
    if core.lent is not None:
        lent = core.lent.started
        back = f"back at {lent.give_back_at} ready samples or after {lent.max_lent_s:g} s"
        return f"lent by swing {lent.swing} ({lent.reason}), {back}"
    return f"with the trainer, {'granted' if core.granted else 'not granted'}"


def _swing(core: ControllerCore) -> str:
    swing = core.swing
    if swing is None:
        return "none"
    by = f", asked for at {swing.request}" if swing.request else ""
    parts = [
        f"{swing.id} to {swing.started.target} ({swing.started.reason}{by}): phase {swing.phase}",
        *([f"woken {named(f'{name}/{epoch}' for name, epoch in swing.woken.items())}"] if swing.woken else []),
        *([f"asked {named(name or 'the service' for name in swing.asked)}"] if swing.asked else []),
        *([f"{len(swing.at_cut)} requests owe an outcome"] if swing.at_cut else []),
    ]
    return ", ".join(parts)


def _boundary(core: ControllerCore) -> str:
    boundary = core.boundary
    if boundary.version is None:
        return "none is open"
    if boundary.verdict is not None:
        position, verdict = boundary.verdict
        return f"{boundary.version} is open, answered at {position}: {verdict.target} ({verdict.reason})"
    return f"{boundary.version} is open, {'given up' if boundary.given_up else 'no answer yet'}"


def _replicas(core: ControllerCore) -> list[Line]:
    lines: list[Line] = []
    for replica in core.replicas.by_name.values():
        updating = f", takes version {replica.updating[0]}" if replica.updating is not None else ""
        condemned = f", to be killed: {replica.condemned}" if replica.condemned else ""
        kind = "hybrid" if replica.hybrid else "standalone"
        state = f"{kind}, {replica.state}{updating}{condemned}; {_load(core.requests, replica.name)}"
        lines.append((f"{replica.name}/{replica.epoch}", state))
    gone = [name for name in core.replicas.given_up if name not in core.replicas.by_name]
    return [*lines, *([("given up", named(gone))] if gone else [])]


def _load(requests: Requests, name: str) -> str:
    count = requests.load(name)
    return f"{count} request{'' if count == 1 else 's'} in flight"


# --- policy ------------------------------------------------------------------------------------------------------------------------


def _policy(core: PolicyCore) -> list[Line]:
    view = core.view
    waits = ", ".join(f"{seconds:.2f} s for {count}" for seconds, count in zip(view.wait_s, view.wait_n, strict=True))
    return [
        _progress(view.books),
        ("policy", f"{core.policy.name} {_settings(core.policy.params)}"),
        ("its memory", _settings({name.lstrip("_"): value for name, value in attributes(core.policy).items() if name not in _SHOWN})),
        ("boundary", _view_boundary(view)),
        ("waits", f"of this cycle's steps, for so many samples: {waits}" if waits else "no step of this cycle is done"),
        ("rates", f"{view.ready_per_s:.3g} samples ready a second, {view.mean_train_s:.3g} s of training a step"),
        ("devices", _swings(view.swings)),
        _ready(view.books),
        _samples(view.books),
        *_end(view.books, view.ended),
    ]


_SHOWN = ("_name", "_params", "_source", "name", "params")


def _settings(values: dict[str, object] | object) -> str:
    assert isinstance(values, dict)
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "-"


def _view_boundary(view: ScheduleView) -> str:
    boundary = view.boundary
    if boundary is None:
        return "none yet"
    expected = view.shape.expected_samples(boundary.version)
    then = f"{boundary.generated} generated of {expected} expected, {boundary.ready} ready, {boundary.in_flight} in flight"
    return f"{boundary.version}, {'open' if view.is_open else 'decided'}; as it opened: {then}"


def _swings(swings: Swings) -> str:
    def mean(seconds: Sequence[float]) -> str:
        return f"{fsum(seconds) / len(seconds):.2f} s" if seconds else "not measured"

    lend = swings.lend
    until = f", back at {lend.give_back_at} ready" if lend is not None else ""
    return f"{swings.holder}{until}; a lend takes {mean(swings.activations_s)}, a return {mean(swings.deactivations_s)}"
