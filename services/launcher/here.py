"""This machine as the site of a run: its services are processes here, or threads of this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from bus.events import RunPlanned
from services.config import RunConfig
from services.devices import Machine, this_machine
from services.launcher.engine_check import check_engine
from services.launcher.fitting import check_here
from services.launcher.folders import remove_shm_folder
from services.launcher.in_process import ThreadLauncher
from services.launcher.local import LocalLauncher
from services.launcher.protocol import Launcher, RunPlace, Say


class LocalSite:
    """Services are processes of this machine."""

    multi_machine = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def machine(self, config: RunConfig) -> Machine:
        return this_machine()

    def check(self, plan: RunPlanned, config: RunConfig, say: Say, *, goes_on: bool = False) -> None:
        if goes_on:
            check_here(plan, config, say)
        check_engine(plan, config, say)

    def clear(self, run: str, *, has_ended: bool) -> None:
        remove_shm_folder(run)  # a run that goes on has its weights put back

    def preview(self, plan: RunPlanned, config: RunConfig) -> Sequence[tuple[str, str]]:
        return ()

    @contextmanager
    def launching(self, place: RunPlace, plan: RunPlanned, config: RunConfig, say: Say) -> Iterator[Launcher]:
        yield self._launcher(place)

    def _launcher(self, place: RunPlace) -> Launcher:
        return LocalLauncher(place)


class ThreadSite(LocalSite):
    """Services are threads of this process."""

    def _launcher(self, place: RunPlace) -> Launcher:
        return ThreadLauncher(place)
