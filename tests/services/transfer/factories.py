"""Both ends of a direct transfer in one process: a real endpoint, real connections, real broadcasts between threads."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bus.errors import EngineError
from bus.events import DirectWeights, WeightUpdateRequested
from services.engines.protocol import DirectTransfer
from services.engines.vllm_receivers import GlooReceiver
from services.learner.digests import weights_digest
from services.transfer.choice import Choice, Taker
from services.transfer.endpoint import Endpoint, Publication
from services.transfer.greeting import new_token
from services.transfer.senders import EngineCalls, GlooSender, MakeSender
from services.transfer.taker import DirectTaker

LIMIT_S = 20.0


def some_weights(version: int) -> dict[str, torch.Tensor]:
    """Of several dtypes and shapes, a scalar and an empty one among them."""
    generator = torch.Generator().manual_seed(version)
    return {
        "a.weight": torch.randn(8, 16, generator=generator),
        "b.weight": torch.randn(4, 4, generator=generator).to(torch.bfloat16),
        "b.bias": torch.randn(4, generator=generator).to(torch.float16),
        "scale": torch.tensor(float(version)),
        "none": torch.empty(0, 3),
        "turned": torch.randn(6, 5, generator=generator).t(),
    }


def children_of(word: str) -> list[int]:
    """Children of this process whose command line has the word, once they are what they are to be."""
    pids: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # threads and processes end meanwhile
            pids += [
                int(pid)
                for pid in (task / "children").read_text().split()
                if word in (words := Path(f"/proc/{pid}/cmdline").read_text().split("\0")) and "-S" not in words
            ]
    return pids


def publication(version: int, revision: int = 0) -> Publication:
    weights = some_weights(version)
    return Publication(version, revision, weights_digest(weights), weights)


def notice(published: Publication, address: str) -> WeightUpdateRequested:
    """What a replica is told of it."""
    return WeightUpdateRequested(
        replica="s0", epoch=1, version=published.version, revision=published.revision, uri="file:///nowhere", digest=published.digest,
        direct=DirectWeights(address=address, transports=("gloo",)),
    )  # fmt: skip


class Dying:
    """A sender that breaks off after so many of the engine's calls."""

    interruptible = True

    def __init__(self, after: str) -> None:
        self._after = after

    def prepare(self) -> None:
        pass

    def send(self, tensors: Mapping[str, torch.Tensor], workers: int, calls: EngineCalls) -> None:
        if self._after == "start":
            calls.start_weight_update()
        raise RuntimeError("the device is lost")

    def close(self) -> None:
        pass


@dataclass
class Engine:
    """What an engine does in a transfer: `DirectCalls`, with the receiving end that runs in vLLM's workers on CPUs."""

    taken: dict[str, torch.Tensor] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    fails_at: str = ""
    hangs_at: str = ""
    interrupted: str = ""

    def __post_init__(self) -> None:
        self._receiver = GlooReceiver(self.taken.update, 0)
        self._interrupted = threading.Event()

    def join(self, info: Mapping[str, object]) -> None:
        self._call("join")
        inner = info["info"]
        assert isinstance(inner, dict)
        self._receiver.join(inner)

    def start(self) -> None:
        self._call("start")

    def receive(self, info: Mapping[str, object]) -> None:
        self._call("receive")
        inner = info["info"]
        assert isinstance(inner, dict)
        self._receiver.receive(inner)

    def finish(self) -> None:
        self._call("finish")

    def interrupt(self, reason: str) -> None:
        self.interrupted = reason
        self._interrupted.set()

    def die(self) -> None:
        """As if its process had ended."""
        self._receiver.close()
        self._interrupted.set()

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails_at:
            raise EngineError(f"{name} failed")
        if name == self.hangs_at:
            assert self._interrupted.wait(30)
            raise EngineError(f"{name} was interrupted")

    def take(self, transfer: DirectTransfer, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        transfer.run(list(transfer.shapes) if names is None else names, self)
        return self.taken


@dataclass
class Stage:
    """An endpoint, and replicas for it."""

    endpoint: Endpoint
    address: str
    token: bytes
    lost: list[str]
    takers: list[DirectTaker] = field(default_factory=list)

    def taker(self, replica: str = "s0", epoch: int = 1, token: bytes | None = None, limit_s: float = LIMIT_S) -> DirectTaker:
        known = self.token if token is None else token
        end = Taker("", (), ("gloo",))
        taker = DirectTaker(replica, lambda: epoch, lambda: known, lambda *_: Choice("gloo"), end, 1, limit_s)
        self.takers.append(taker)
        return taker

    def stranger(self) -> socket.socket:
        """Anybody's connection."""
        host, _, port = self.address.partition(":")
        return socket.create_connection((host, int(port)))

    def notice(self, published: Publication) -> WeightUpdateRequested:
        return notice(published, self.address)


@contextlib.contextmanager
def stage(make: MakeSender | None = None, limit_s: float = LIMIT_S) -> Iterator[Stage]:
    """`make`: another sender than the one by gloo."""
    listener = socket.create_server(("127.0.0.1", 0))
    token, lost = new_token(), list[str]()

    def lose(replica: str, reason: str) -> None:
        lost.append(f"{replica}: {reason}")

    senders: dict[str, MakeSender] = {"gloo": make or (lambda _: GlooSender())}
    endpoint = Endpoint(listener, token, senders, lose, limit_s)
    endpoint.start()
    made = Stage(endpoint, f"127.0.0.1:{listener.getsockname()[1]}", token, lost)
    try:
        yield made
    finally:
        for taker in made.takers:
            taker.close()
        endpoint.close()
