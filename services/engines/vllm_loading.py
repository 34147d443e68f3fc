"""How weights get into vLLM, and how it is checked that they did.

    names and shapes fit the model ▸ update session from the file that holds them ▸ version label ▸ checksums of all parameters
                                     or as the trainer's process hands them over

What does not fit never reaches vLLM. A failure after that leaves the model half loaded, so it is the end of the engine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from bus.errors import EngineError, TransferError
from services.engines.config import VllmConfig
from services.engines.embedded_weights import Weights, tied_names
from services.engines.protocol import DirectTransfer
from services.engines.vllm_server import VllmServer
from services.learner.digests import weights_digest
from services.machine import SHARED_MEMORY
from services.weights.files import WeightsFile, write_tensors

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Do(Protocol):
    """Performs one step of vLLM's within a limit; if it fails, the engine has failed."""

    def __call__(self, what: str, coroutine: Coroutine[object, object, T], timeout_s: float, /) -> T: ...


class VllmLoader:
    """Of one engine. `fail` ends the engine and raises EngineError."""

    def __init__(self, config: VllmConfig, server: VllmServer, do: Do, fail: Callable[[str], NoReturn]) -> None:
        self._config = config
        self._server = server
        self._do = do
        self._fail = fail
        self._weights: Weights | None = None
        self._tied: list[list[str]] = []
        """The names of each weight."""
        self._verified: dict[str, str] = {}
        """Digest of weights -> digest of the checksums they gave; of the last two."""

    def start(self, model: PreTrainedModel) -> None:
        """`model`: without memory; says which weights there are."""
        self._tied = list(tied_names(model.state_dict(keep_vars=True)))
        self._weights = Weights(model, torch.device("meta"))
        self._weights.allocate()

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Has vLLM take them from their file; such as come from none are written to one in shared memory first."""
        assert self._weights is not None, "a started engine knows its model"
        self._weights.load(weights)
        names = self._names(weights)
        with _file_of({name: weights[name] for name in names.values()}, weights) as path:
            self._do("load_weights", self._server.update(path, names, version), self._config.update_timeout_s)
        self._verify(weights.digest if isinstance(weights, WeightsFile) else weights_digest(weights))

    def load_direct(self, transfer: DirectTransfer, version: int) -> None:
        """Has vLLM take them from the trainer's process. Raises TransferError if nothing was touched."""
        assert self._weights is not None, "a started engine knows its model"
        self._weights.check(transfer.shapes)
        names = self._names(transfer.shapes)
        calls = _Calls(self._server, self._do, self._config, {wire: own for own, wire in names.items()}, version)
        try:
            transfer.run(list(names.values()), calls)
        except TransferError as error:
            if calls.started:
                self._fail(f"weights of version {version} came in half: {error}")
            raise
        self._verify(transfer.digest)

    def _names(self, given: Mapping[str, object]) -> dict[str, str]:
        """The model's name -> the given one. Of tied weights the trainer may send any; vLLM takes the first."""
        return {tied[0]: next(name for name in tied if name in given) for tied in self._tied}

    def _verify(self, digest: str) -> None:
        """Equal weights must have become equal parameters, and different ones different parameters, on every worker."""
        if not self._config.verify_weights:
            return
        checksums = self._do("verify", self._server.checksums(), self._config.update_timeout_s)
        seen = hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()
        known = self._verified.pop(digest, seen)
        others = {other for other, theirs in self._verified.items() if theirs == seen}
        if not checksums or known != seen or others:
            self._fail(
                f"weights of digest {digest} became parameters of digest {seen}, but {known} before; "
                f"{len(others)} other weights gave the same; {len(checksums)} parameters: vLLM has not loaded what it was given"
            )
        self._verified = dict(list(self._verified.items())[-1:]) | {digest: seen}


class _Calls:
    """What the trainer's process may have vLLM do, one transfer long."""

    def __init__(self, server: VllmServer, do: Do, config: VllmConfig, own_names: Mapping[str, str], version: int) -> None:
        self._server = server
        self._do = do
        self._config = config
        self._own_names = own_names
        self._version = version
        self.started = False

    def join(self, info: Mapping[str, object]) -> None:
        if reason := self._do("join", self._server.join(info), self._config.switch_timeout_s):
            raise TransferError(f"vLLM cannot take weights so: {reason}")

    def start(self) -> None:
        self.started = True
        self._do("load_weights", self._server.start_update(), self._config.update_timeout_s)

    def receive(self, info: Mapping[str, object]) -> None:
        self._do("load_weights", self._server.receive(self._renamed(info)), self._config.update_timeout_s)

    def finish(self) -> None:
        self._do("load_weights", self._server.finish_update(self._version), self._config.update_timeout_s)

    def interrupt(self, reason: str) -> None:
        logger.error("loading weights is interrupted: version=%d reason=%s", self._version, reason)
        self._server.interrupt()

    def _renamed(self, way: Mapping[str, object]) -> dict[str, object]:
        info = way["info"]
        assert isinstance(info, dict)
        return {**way, "info": info | {"names": [self._own_names[name] for name in info["names"]]}}


@contextmanager
def _file_of(tensors: Mapping[str, torch.Tensor], origin: Mapping[str, torch.Tensor]) -> Iterator[Path]:
    """A file that holds them as long as this lasts: their origin, or a new one. Raises EngineError if none can be written."""
    if isinstance(origin, WeightsFile) and origin.path.exists():
        yield origin.path
        return
    folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="swingshift-weights-", dir=folder) as place:
        path = Path(place) / "weights.safetensors"
        try:
            write_tensors(tensors, path, durable=False)
        except (OSError, ValueError) as error:
            raise EngineError(f"weights cannot be handed to vLLM through {path}: {error}") from error
        yield path
