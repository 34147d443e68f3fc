"""A policy written for verl (`DynamicSchedulePolicyBase`) as one of ours. Its file runs unchanged, in a process of its own.

    ScheduleView ──▶ VerlPolicy ──moments──▶ VerlCalls ──calls, in verl's order──▶ VerlProcess ══▶ verl_child: the file, and stand-ins

    boundary opens   verdict       should_activate_after_step, and ahead of time for how many ready samples it will want the devices back
    is decided       decided       the moment is remembered
    devices lent     lent          request_rebalance ▸ update_after_step ▸ should_deactivate ▸ deactivate_wait_samples
                     rebalance     did it ask its rollouter to? Then `RebalanceRequested` is recorded
                     extra         the lend is amended, if it wants another number now than was said with the verdict

What lies in the file's process cannot be written down, so the policy's state is the sequence of moments that led to it, one a boundary and
one a lend: a process that is needed and not there (after a crash, from a snapshot, in a replay) is started and told them all again. So the
same log gives the same answers, if the file gives the same answers to the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from bus.events import Value
from policies.protocol import Verdict
from policies.view import ScheduleView
from services.policy.source import file_and_class
from services.policy.verl_calls import Boundary, Lent, Made, VerlCalls
from services.policy.verl_process import VerlProcess

ONLY_HYBRID = "only_hybrid"
NOT_ASKED_FOR = ("starved", "evaluation")
"""Lends that the controller makes by itself: verl has none such, and the policy is not told of them."""


class _Running:
    """The file's process, and how far it has been told the policy's moments."""

    def __init__(self, process: VerlProcess) -> None:
        self.calls = VerlCalls(process)
        self.begun = False
        """The constructor was called with what the run says."""
        self.told = 0
        self.ahead: tuple[Boundary, bool] | None = None
        """The open boundary that it has answered already, before it is one of the moments, and the answer."""


_RUNNING: WeakKeyDictionary[VerlPolicy, _Running] = WeakKeyDictionary()
"""Not an attribute of the policy, for it is no part of its state: what is frozen and thawed is plain data."""


class _Text:
    """The file's text; one that looks at the policy's state wants no more of it than that it is there."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"{len(self.text)} characters"


class _Moments:
    """What the file has been told of, in order: one a boundary and one a lend, so the plan's steps bound them."""

    def __init__(self) -> None:
        self.passed: list[Boundary | Lent] = []

    def __repr__(self) -> str:
        boundaries = sum(isinstance(moment, Boundary) for moment in self.passed)
        return f"{boundaries} boundaries and {len(self.passed) - boundaries} lends"


class VerlPolicy:
    """A `policies.protocol.Policy`. Its questions raise PolicyFailed where the file raises, is late, or ends."""

    def __init__(self, name: str, source: str, params: Mapping[str, Value]) -> None:
        self._name = name
        self._params = dict(params)
        self._file = _Text(source)
        self._moments = _Moments()
        self._lend = 0
        """The lend for which it has said when the devices are to go back; 0: none."""
        self._give_back_at = 0
        self._rebalance = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def params(self) -> dict[str, Value]:
        return dict(self._params)

    def verdict(self, view: ScheduleView) -> Verdict:
        moment = self._boundary(view)
        lends = self._answer(view, moment)
        evidence = {
            "generated": float(moment.generated),
            "expected": float(moment.expected),
            "buffer": float(moment.buffer),
            "deactivation_s": moment.deactivation_s,
        }
        if not lends:
            return Verdict("train", 0, "should_activate_after_step said no", evidence)
        return Verdict("rollout", self._expected_number(view), "should_activate_after_step said yes", evidence)

    def give_back_at(self, view: ScheduleView) -> int:
        lend = view.swings.lend
        return self._give_back_at if lend is not None and lend.swing == self._lend else self._expected_number(view)

    def decided(self, view: ScheduleView) -> None:
        moment = self._boundary(view)
        self._answer(view, moment)
        running = self._running(view)
        running.ahead = None
        running.told += 1
        self._moments.passed.append(moment)

    def lent(self, view: ScheduleView) -> None:
        lend, plan = view.swings.lend, view.books.plan
        assert lend is not None
        assert plan is not None
        self._rebalance = False
        if lend.reason in NOT_ASKED_FOR:
            return
        running = self._running(view)
        moment = Lent(view.swings.this_cycle.activation_s, plan.enable_rebalance)
        self._rebalance, wanted = running.calls.lent(moment)
        running.told += 1
        self._moments.passed.append(moment)
        self._lend = lend.swing
        self._give_back_at = view.shape.required_samples if wanted is None else wanted

    def extra(self, view: ScheduleView) -> Verdict | None:
        lend = view.swings.lend
        if lend is None or lend.swing != self._lend:
            return None
        return Verdict("rollout", self._give_back_at, "deactivate_wait_samples")

    def rebalance(self, view: ScheduleView) -> bool:
        return self._rebalance

    def _boundary(self, view: ScheduleView) -> Boundary:
        boundary, shape = view.boundary, view.shape
        assert boundary is not None
        expected, buffer = shape.expected_samples(boundary.version), shape.buffer_samples
        waits = tuple(view.wait_s), tuple(view.wait_n)
        return Boundary(boundary.version, boundary.generated, expected, buffer, *waits, boundary.deactivation_s)

    def _answer(self, view: ScheduleView, moment: Boundary) -> bool:
        """Is it to be lent at this boundary? It is asked once."""
        running = self._running(view)
        if running.ahead is not None and running.ahead[0] != moment:
            # A setting that the context shows was changed since: what it has been told cannot be taken back.
            del _RUNNING[self]
            running = self._running(view)
        if running.ahead is None:
            running.ahead = moment, running.calls.boundary(moment)
        return running.ahead[1]

    def _expected_number(self, view: ScheduleView) -> int:
        """Ready samples at which it will want devices back that are lent now, taking it that the lend costs what the last one did."""
        lends_s = view.swings.activations_s
        wanted = self._running(view).calls.peek(lends_s[-1] if lends_s else 0.0)
        return view.shape.required_samples if wanted is None else wanted

    def _running(self, view: ScheduleView) -> _Running:
        running = _RUNNING.get(self)
        if running is None:
            running = _RUNNING[self] = _Running(start(self._name, self._file.text))
        if not running.begun:
            running.begun = True
            running.calls.made(self._made(view))
        while running.told < len(self._moments.passed):
            running.calls.again(self._moments.passed[running.told])
            running.told += 1
        return running

    def _made(self, view: ScheduleView) -> Made:
        shape = view.shape
        only_hybrid = self._params.get(ONLY_HYBRID)
        only_hybrid = shape.only_hybrid if only_hybrid is None else bool(only_hybrid)
        settings = {key: only_hybrid if key == ONLY_HYBRID else value for key, value in self._params.items()}
        return Made(tuple(settings.items()), shape.required_samples, shape.trigger_parameter_sync_step, only_hybrid)

    def keep(self, process: VerlProcess) -> None:
        """Uses a process that has run the file and nothing more."""
        _RUNNING[self] = _Running(process)


def start(name: str, source: str) -> VerlProcess:
    """A process that has run the file. Raises PolicyFailed."""
    file, class_name = file_and_class(name)
    return VerlProcess(name, file, source, class_name)
