"""A process that stands in for a service in tests of the supervisor: says its first word, then behaves as it was told.

python -m tests.services.stand_in RUN SOURCE BEHAVIOUR TOKEN        REDIS_URL names the server
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from bus.entry import Draft, Entry, Producer
from bus.events import Event, KillRequested, RunEnded, ServiceLost, ServiceStarted, StopRequested
from bus.redis_log import RedisLog


class StandIn:
    """One incarnation."""

    def __init__(self, run: str, source: str, token: str) -> None:
        self.source = source
        self._token = token
        self._log = RedisLog.open(os.environ["REDIS_URL"], run)
        self._producer = Producer(source, 0)

    def attach(self) -> int:
        """Says the first word; returns the epoch."""
        started = ServiceStarted(code="test", host=socket.gethostname(), pid=os.getpid(), token=self._token)
        self._producer = self._log.attach(self.source, Draft(started, derived=False, cause=0, at=time.time_ns())).producer
        return self._producer.epoch

    def say(self, event: Event) -> None:
        self._log.append(self._producer, [Draft(event, derived=False, cause=0, at=time.time_ns())])

    def entries(self) -> Iterator[Entry]:
        """All entries of the log from its beginning, as they come."""
        position = 0
        while True:
            for entry in self._log.read(position, 100, 1000):
                position = entry.position
                yield entry

    def wait_for_end(self) -> None:
        next(entry for entry in self.entries() if isinstance(entry.event, RunEnded))


def serve(service: StandIn) -> None:
    """Ends when the run does."""
    service.attach()
    service.wait_for_end()


def crash(service: StandIn) -> None:
    """Ends at once, every time."""
    service.attach()
    sys.exit("something broke")


def crash_first(service: StandIn) -> None:
    """Only the first incarnation crashes."""
    if service.attach() == 1:
        sys.exit("something broke")
    service.wait_for_end()


def never_start(service: StandIn) -> None:
    """Ends before its first word."""
    sys.exit("cannot even start")


def be_mistaken(service: StandIn) -> None:
    """Ends as a service does whose command cannot be followed."""
    sys.stderr.write("no such thing\n")
    sys.exit(2)


def be_fenced(service: StandIn) -> None:
    """Ends as a service does that was replaced."""
    service.attach()
    sys.exit(3)


def ignore_the_end(service: StandIn) -> None:
    """Ends only when it is killed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    service.attach()
    time.sleep(600)


def crash_with_child(service: StandIn) -> None:
    """The first incarnation leaves a child behind, which ignores SIGTERM."""
    if service.attach() == 1:
        subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
        sys.exit("my child lives on")
    service.wait_for_end()


def hang_first(service: StandIn) -> None:
    """The first incarnation hears nothing, not even SIGTERM."""
    if service.attach() == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    service.wait_for_end()


def end_on_stop(service: StandIn) -> None:
    """A controller that ends the run when it is asked to."""
    service.attach()
    next(entry for entry in service.entries() if isinstance(entry.event, StopRequested))
    service.say(RunEnded(reason="stopped"))


def end_when_back(service: StandIn) -> None:
    """A controller that ends the run when another service has come back."""
    service.attach()
    next(entry for entry in service.entries() if isinstance(entry.event, ServiceStarted) and entry.epoch == 2)
    service.say(RunEnded(reason="completed"))


def end_when_lost(service: StandIn) -> None:
    """A controller that ends the run when another service is lost for good."""
    service.attach()
    next(entry for entry in service.entries() if isinstance(entry.event, ServiceLost) and not entry.event.restarting)
    service.say(RunEnded(reason="service_lost", detail="trainer"))


def end_at_once(service: StandIn) -> None:
    """A controller whose run is over soon."""
    service.attach()
    service.say(RunEnded(reason="completed"))


def kill_replica(service: StandIn) -> None:
    """A controller that has the first incarnation of h0 killed, and ends the run when it is back."""
    service.attach()
    for entry in service.entries():
        if entry.source == "replica:h0" and isinstance(entry.event, ServiceStarted):
            if entry.epoch == 2:
                service.say(RunEnded(reason="completed"))
                return
            service.say(KillRequested(replica="h0", epoch=1, reason="late"))


BEHAVIOURS: dict[str, Callable[[StandIn], None]] = {
    behaviour.__name__: behaviour
    for behaviour in (
        serve, crash, crash_first, never_start, be_mistaken, be_fenced, ignore_the_end, crash_with_child, hang_first,
        end_on_stop, end_when_back, end_when_lost, end_at_once, kill_replica,
    )
}  # fmt: skip


if __name__ == "__main__":
    run, source, behaviour, token = sys.argv[1:]
    BEHAVIOURS[behaviour](StandIn(run, source, token))
