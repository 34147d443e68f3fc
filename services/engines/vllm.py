"""The engine that serves a model by vLLM.

    replica's thread ──submit, abort──▶ flights ──▶ vLLM's engine core, a child process ──▶ docket ──▶ poll

What a swing is made of, each step checked, and each failure the end of this engine (nothing is assumed to have worked):

    sleep:  pause (everything in flight has its output, device idle) ▸ sleep ▸ it says that it sleeps
    wake:   wake the weights' memory ▸ load: update session ▸ version label ▸ checksums ▸ prefix cache emptied
            ▸ open: wake the cache's memory ▸ it says that all is awake ▸ requests start
    update: pause ▸ load ▸ open
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from bus.errors import EngineError
from services.engines.config import EngineConfig
from services.engines.docket import Docket
from services.engines.embedded_model import vocab_size
from services.engines.embedded_weights import Weights, tied_names
from services.engines.protocol import EngineState, EngineStats, GenerateOutput, GenerateRequest, reason_unservable
from services.engines.vllm_arguments import engine_arguments, engine_environment
from services.engines.vllm_flights import Flights
from services.engines.vllm_server import VllmServer
from services.learner.digests import weights_digest
from services.transformers_lock import MAKING_A_MODEL
from services.weights import WeightsFile

T = TypeVar("T")

SHM = Path("/dev/shm")


class VllmEngine:
    """Serves the model of `model_folder` (a Hugging Face config.json) on `device`. `Engine` says what the calls promise.

    `server`: another than the one that follows from the config. One that runs already is put to sleep, and left running by `close`.
    """

    def __init__(self, config: EngineConfig, model_folder: Path, device: str = "cpu", server: VllmServer | None = None) -> None:
        self._config = config
        self._model_folder = model_folder
        self._owns_server = False
        self._server = server or VllmServer(engine_arguments(config, model_folder, device), engine_environment(device))
        self._docket = Docket()
        self._flights = Flights(self._server, self._docket, config.max_running_requests, self._salt, self._fail)
        self._state: EngineState | None = None
        self._ready = False
        self._cache_asleep = False
        self._closed = False
        self._version: int | None = None
        self._tokens_before = 0
        self._weights: Weights | None = None
        self._tied: list[list[str]] = []
        """The names of each weight."""
        self._vocab_size = 0
        self._verified: dict[str, str] = {}
        """Digest of weights -> digest of the checksums they gave; of the last two."""

    def start(self) -> None:
        """Starts vLLM, unless a running one was given, and puts it to sleep."""
        self._docket.check()
        if self._state is not None:
            raise EngineError("the engine was started twice")
        model = _without_memory(self._model_folder)
        self._tied = list(tied_names(model.state_dict(keep_vars=True)))
        self._vocab_size = vocab_size(model, "vLLM")
        self._weights = Weights(model, torch.device("meta"))
        self._weights.allocate()
        if not self._server.running:
            self._owns_server = True
            self._server.start(self._config.vllm.start_timeout_s)
        self._server.listen(self._fail)
        self._tokens_before = self._server.generated_tokens
        self._do("sleep", self._server.sleep(), self._config.vllm.switch_timeout_s)
        self._cache_asleep = True
        self._set("asleep")

    def wake(self) -> None:
        """Takes memory for the weights; that for the cache is taken by `open`."""
        if self._started() == "paused":
            return
        self._require("wake", "asleep")
        self._do("wake", self._server.wake("weights"), self._config.vllm.switch_timeout_s)
        self._set("paused")

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Has vLLM take them from their file; such as come from none are written to one in shared memory first."""
        self._started()
        self._require("load_weights", "paused")
        self._ready = False
        assert self._weights is not None, "a started engine knows its model"
        self._weights.load(weights)
        # Of tied weights the trainer may send any; vLLM takes the first.
        names = {tied[0]: next(name for name in tied if name in weights) for tied in self._tied}
        with _file_of({name: weights[name] for name in names.values()}, weights) as path:
            self._do("load_weights", self._server.update(path, names, version), self._config.vllm.update_timeout_s)
        if self._config.vllm.verify_weights:
            self._verify(weights)
        if self._config.vllm.prefix_cache == "reset":
            self._do("reset_prefix_cache", self._server.reset_prefix_cache(), self._config.vllm.switch_timeout_s)
        with self._docket.changed:
            self._version = version
            self._ready = True

    def open(self) -> None:
        """Takes memory for the cache, if it is not there, and admits requests once vLLM says that all is awake."""
        if self._started() == "open":
            return
        self._require("open", "paused")
        if not self._ready:
            raise EngineError(
                f"no weights were loaded completely since the last wake or failed load (the last version was {self._version}): "
                "call load_weights first"
            )
        if self._cache_asleep:
            if not self._do("open", self._server.wake("kv_cache"), self._config.vllm.switch_timeout_s):
                self._fail("vLLM was woken in full, and says that a part of its memory is still asleep")
                self._docket.check()
            self._cache_asleep = False
        self._do("open", self._server.resume(), self._config.vllm.switch_timeout_s)
        self._set("open")

    def submit(self, request: GenerateRequest) -> None:
        """Queues a request, or answers at once why not."""
        with self._docket.changed:
            state = self._started()
            self._docket.add(request.request)
            if state != "open":
                self._docket.finish(GenerateOutput(request.request, "refused", error=f"the engine is {state}"))
            elif reason := reason_unservable(request, self._config.max_model_len, self._vocab_size):
                self._docket.finish(GenerateOutput(request.request, "error", error=reason))
            else:
                self._server.post(lambda: self._flights.add(request))

    def abort(self, requests: Sequence[str]) -> None:
        """Ends them with the tokens that have arrived."""
        self._started()
        self._do("abort", self._flights.abort(list(requests)), self._config.pause_timeout_s)

    def poll(self, timeout_s: float) -> list[GenerateOutput]:
        """Outputs that are there, waiting at most so long for the first."""
        return self._docket.take(timeout_s)

    def pause(self) -> None:
        """Ends all in flight; returns when vLLM's device is idle."""
        with self._docket.changed:
            state = self._started()
            self._require("pause", "open", "paused")
            self._state = "paused"
        if state == "open":
            clear = self._config.vllm.prefix_cache == "reset"
            self._do("pause", self._flights.pause(clear_cache=clear), self._config.pause_timeout_s)
        self._docket.wait_until_empty(self._config.pause_timeout_s)
        self._docket.check()

    def sleep(self) -> None:
        """Gives the memory of weights and cache back, where the device can."""
        if self._started() == "asleep":
            return
        self._require("sleep", "paused")
        self._ready = False
        self._do("sleep", self._server.sleep(), self._config.vllm.switch_timeout_s)
        self._cache_asleep = True
        self._set("asleep")

    def stats(self) -> EngineStats:
        """A look that asks nobody."""
        with self._docket.changed:
            in_flight = len(self._docket)
            running = min(self._flights.running, in_flight)
            return EngineStats(
                running=running,
                queued=in_flight - running,
                generated_tokens=self._server.generated_tokens - self._tokens_before,
                state=self._state or "asleep",
                version=self._version,
            )

    def close(self) -> None:
        """Aborts what is in flight and ends vLLM with all its processes, or leaves it to whom it belongs."""
        if self._closed:
            return
        self._closed = True
        if self._server.running and len(self._docket):
            try:
                self._server.call("close", self._flights.abort_all(), self._config.pause_timeout_s)
            except EngineError as error:
                self._fail(str(error))
        if self._owns_server:
            self._server.close()
        with self._docket.changed:
            self._state = self._state and "asleep"
            self._docket.close()

    def _salt(self) -> str | None:
        return str(self._version) if self._config.vllm.prefix_cache == "salt" else None

    def _verify(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Equal weights must have become equal parameters, and different ones different parameters, on every worker."""
        checksums = self._do("verify", self._server.checksums(), self._config.vllm.update_timeout_s)
        seen = hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()
        digest = weights.digest if isinstance(weights, WeightsFile) else weights_digest(weights)
        known = self._verified.pop(digest, seen)
        others = {other for other, theirs in self._verified.items() if theirs == seen}
        if not checksums or known != seen or others:
            self._fail(
                f"weights of digest {digest} became parameters of digest {seen}, but {known} before; "
                f"{len(others)} other weights gave the same; {len(checksums)} parameters: vLLM has not loaded what it was given"
            )
            self._docket.check()
        self._verified = dict(list(self._verified.items())[-1:]) | {digest: seen}

    def _do(self, what: str, coroutine: Coroutine[object, object, T], timeout_s: float) -> T:
        """One step of vLLM's. If it fails, nobody knows what state vLLM is in, so the engine has failed."""
        try:
            return self._server.call(what, coroutine, timeout_s)
        except EngineError as error:
            self._fail(str(error))
            self._docket.check()
            raise

    def _fail(self, reason: str) -> None:
        self._docket.fail(reason)
        if self._server.running:
            self._server.post(self._flights.drop)

    def _started(self) -> EngineState:
        with self._docket.changed:
            self._docket.check()
            if self._state is None:
                raise EngineError("the engine was not started: call start first")
            return self._state

    def _require(self, call: str, *states: EngineState) -> None:
        if self._state not in states:
            raise EngineError(f"{call} in state {self._state}: it needs {' or '.join(states)}")

    def _set(self, state: EngineState) -> None:
        with self._docket.changed:
            self._docket.check()
            self._state = state


def _without_memory(folder: Path) -> PreTrainedModel:
    """The model as transformers has it, for the names and shapes of its weights."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        with MAKING_A_MODEL, torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except (OSError, ImportError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise EngineError(f"the model in {folder} cannot be served by vLLM: {type(error).__name__}: {error}") from error
    return model


@contextmanager
def _file_of(tensors: Mapping[str, torch.Tensor], origin: Mapping[str, torch.Tensor]) -> Iterator[Path]:
    """A file that holds them as long as this lasts: their origin, or a new one. Raises EngineError if none can be written."""
    if isinstance(origin, WeightsFile) and origin.path.exists():
        yield origin.path
        return
    folder = SHM if SHM.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="swingshift-weights-", dir=folder) as place:
        path = Path(place) / "weights.safetensors"
        try:
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
        except (OSError, SafetensorError) as error:
            raise EngineError(f"weights cannot be handed to vLLM through {path}: {error}") from error
        yield path
