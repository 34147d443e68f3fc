"""The names that a policy written for verl imports, where neither verl nor ray is there: stand-ins for exactly these.

    import ray                                                             ray.get of what the rollouter's handle gives
    from verl.experimental.fully_async_policy.dynamic_schedule import …    the base class, its context, the registry

They are put among the modules of the one process that runs such a file, and of no other. The base class and the context have the names
that verl gives them; what they do is written down in verl's documentation of dynamic scheduling. Imports nothing of ours, to start fast.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TypeVar

PACKAGE = "verl.experimental.fully_async_policy.dynamic_schedule"
DOCS = "see docs/verl-policies.md"


@dataclass
class DynamicScheduleContext:
    """What a policy is told. One object for the whole run: the same one at every call, with what has changed since."""

    required_samples: int
    trigger_parameter_sync_step: int
    total_generated_samples: int = 0
    expected_samples: int = 0
    buffer_samples: float = 0.0
    step_wait_times: list[float] = field(default_factory=list)
    step_wait_samples: list[int] = field(default_factory=list)
    only_hybrid: bool = False
    last_activate_duration_s: float = 0.0
    last_deactivate_duration_s: float = 0.0
    step_required_samples: int = field(init=False)
    """Samples of a whole cycle, whatever its name says."""

    def __post_init__(self) -> None:
        self.step_required_samples = self.required_samples * self.trigger_parameter_sync_step


class Rollouter:
    """What a policy finds as its `_rollouter`: a handle that takes one request, and remembers that it came."""

    def __init__(self) -> None:
        self.asked = False
        self.looked_at = False

    @property
    def rebalance_requests(self) -> RemoteMethod:
        """Spread the requests in flight anew."""
        return RemoteMethod(self)

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"the rollouter takes rebalance_requests.remote() from a policy and nothing else, there is no {name}: {DOCS}")


class RemoteMethod:
    """`handle.method`, of which `remote` is called."""

    def __init__(self, rollouter: Rollouter) -> None:
        self._rollouter = rollouter

    def remote(self, *arguments: object, **named: object) -> Reference:
        """Notes the request; it is carried out once it is recorded."""
        self._rollouter.asked = True
        return Reference()


class Reference:
    """What `remote` returns, for `ray.get`."""


class DynamicSchedulePolicyBase(ABC):
    """What such a policy is a subclass of."""

    _handle: Rollouter | None = None

    @property
    def _rollouter(self) -> Rollouter | None:
        if self._handle is not None:
            self._handle.looked_at = True
        return self._handle

    @_rollouter.setter
    def _rollouter(self, handle: Rollouter | None) -> None:
        self._handle = handle

    @abstractmethod
    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        """A step begins: are the devices to come back?"""

    @abstractmethod
    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        """Once how many samples are ready?"""

    @abstractmethod
    def should_activate_after_step(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        """A cycle is over: are the devices to be lent?"""

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        """They are lent: spread the requests anew, if that is wanted. Nothing here."""
        return

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        """The boundary is over. Nothing here."""
        return


Kind = type[DynamicSchedulePolicyBase]
Registered = TypeVar("Registered", bound=Kind)
REGISTERED: dict[str, Kind] = {}


def register_policy(name: str) -> Callable[[Registered], Registered]:
    """A decorator that makes a class known under a name."""

    def note(kind: Registered) -> Registered:
        REGISTERED[name] = kind
        return kind

    return note


def build_policy(name: str, **settings: object) -> DynamicSchedulePolicyBase:
    """A policy of a class that was registered."""
    if name not in REGISTERED:
        raise KeyError(f"no policy is registered as {name!r}, there are {', '.join(REGISTERED) or 'none'}")
    return REGISTERED[name](**settings)


def get(references: Reference | list[Reference], timeout: float | None = None) -> object:
    """`ray.get`: the outcome of a request is not known yet when it is made, so it says that nothing was moved so far."""
    if isinstance(references, list):
        return [get(reference) for reference in references]
    if not isinstance(references, Reference):
        raise TypeError(f"ray.get was given {references!r}, not what the rollouter's rebalance_requests.remote() returned: {DOCS}")
    return {"cleared_entries": 0, "server_loads": {}}


INTERFACE: dict[str, object] = {
    "DynamicScheduleContext": DynamicScheduleContext,
    "DynamicSchedulePolicyBase": DynamicSchedulePolicyBase,
    "build_policy": build_policy,
    "register_policy": register_policy,
}
RAY: dict[str, object] = {"get": get}


def install(policies: Mapping[str, Kind]) -> None:
    """Puts the stand-ins among this process's modules, whatever is installed here. `policies`: verl's own, by the module they lie in."""
    parts = PACKAGE.split(".")
    for end in range(1, len(parts)):
        _module(".".join(parts[:end]), {})
    _module(PACKAGE, INTERFACE | {kind.__name__: kind for kind in policies.values()})
    _module(f"{PACKAGE}.base", INTERFACE)
    for name, kind in policies.items():
        _module(f"{PACKAGE}.{name}", {kind.__name__: kind})
    _module("ray", RAY)


def _module(name: str, content: Mapping[str, object]) -> None:
    def missing(attribute: str) -> object:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        there = f"it has {', '.join(content)}" if content else f"there is {PACKAGE} alone"
        raise ImportError(f"verl and ray are not here, and the stand-in for {name} has no {attribute}: {there}; {DOCS}")

    module = ModuleType(name)
    vars(module).update(content, __path__=[], __getattr__=missing)
    sys.modules[name] = module
