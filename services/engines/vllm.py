"""The engine that serves a model by vLLM.

    replica's thread ──submit, abort──▶ flights ──▶ vLLM's engine core, a child process ──▶ docket ──▶ poll

What a swing is made of, each step checked, and each failure the end of this engine (nothing is assumed to have worked):

    sleep:  pause (everything in flight has its output, device idle) ▸ sleep ▸ it says that it sleeps
    wake:   wake the weights' memory ▸ load: update session ▸ version label ▸ checksums ▸ prefix cache emptied
            ▸ open: wake the cache's memory ▸ it says that all is awake ▸ requests start
    update: pause, or freeze (device idle, everything in flight stays at vLLM) ▸ load ▸ open
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from bus.errors import EngineError, TransferError
from services.engines.config import EngineConfig
from services.engines.docket import Docket
from services.engines.embedded_model import vocab_size
from services.engines.gpu_driver import Look
from services.engines.gpu_memory import MemoryGuard
from services.engines.protocol import (
    DirectTransfer,
    DirectWays,
    EngineState,
    EngineStats,
    GenerateOutput,
    GenerateRequest,
    reason_unservable,
    require,
    require_started,
    require_weights,
)
from services.engines.vllm_arguments import engine_arguments, engine_environment, workers_of
from services.engines.vllm_flights import Flights
from services.engines.vllm_loading import VllmLoader
from services.engines.vllm_server import VllmServer
from services.transformers_lock import MAKING_A_MODEL

T = TypeVar("T")

GIVE_BACK_S = 5.0
"""How long frozen requests may take to end when something has failed."""


class VllmEngine:
    """Serves the model of `model_folder` (a Hugging Face config.json) on `device`. `Engine` says what the calls promise.

    `server`: another than the one that follows from the config. One that runs already is put to sleep, and left running by `close`.
    """

    def __init__(self, config: EngineConfig, model_folder: Path, device: str = "cpu", server: VllmServer | None = None) -> None:
        self._config = config
        self._model_folder = model_folder
        self._device = device
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
        self._loader = VllmLoader(config.vllm, self._server, self._do, self._fail_now)
        self._guard = MemoryGuard(config.vllm.memory_share, Look(device, lambda: self._server.pids))
        self._vocab_size = 0

    def start(self) -> None:
        """Starts vLLM, unless a running one was given, and puts it to sleep."""
        self._docket.check()
        if self._state is not None:
            raise EngineError("the engine was started twice")
        model = _without_memory(self._model_folder)
        self._vocab_size = vocab_size(model, "vLLM")
        self._loader.start(model)
        if not self._server.running:
            self._owns_server = True
            self._server.start(self._config.vllm.start_timeout_s)
        self._server.listen(self._fail)
        self._tokens_before = self._server.generated_tokens
        self._fall_asleep()

    def wake(self) -> None:
        """Takes memory for the weights; that for the cache is taken by `open`."""
        if self._started() == "paused":
            return
        require("wake", self._state, "asleep")
        self._guard.waking()
        self._do("wake", self._server.wake("weights"), self._config.vllm.switch_timeout_s)
        self._set("paused")

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Has vLLM take them from the file they are in, and checks that it has them."""
        self._started()
        require("load_weights", self._state, "paused", "frozen")
        self._ready = False
        self._loader.load(weights, version)
        self._has(version)

    @property
    def direct(self) -> DirectWays:
        """On GPUs by vLLM's own engines for NCCL and CUDA IPC; on CPUs by gloo, which no configuration asks for."""
        ways = ("nccl", "ipc") if self._device.startswith("cuda") else ("gloo",)
        return DirectWays(ways, workers_of(self._config.vllm), self._load_direct)

    def _load_direct(self, transfer: DirectTransfer, version: int) -> None:
        self._started()
        require("load_weights", self._state, "paused", "frozen")
        was_ready, self._ready = self._ready, False
        try:
            self._loader.load_direct(transfer, version)
        except TransferError:
            self._ready = was_ready
            raise
        self._has(version)

    def _has(self, version: int) -> None:
        """Nothing of older weights is used any more."""
        if self._resets:
            self._do("reset_prefix_cache", self._server.reset_prefix_cache(), self._config.vllm.switch_timeout_s)
        with self._docket.changed:
            self._version = version
            self._ready = True

    def open(self) -> None:
        """Takes memory for the cache, if it is not there, and admits requests once vLLM says that all is awake."""
        if self._started() == "open":
            return
        require("open", self._state, "paused", "frozen")
        require_weights(self._ready, self._version)
        if self._cache_asleep:
            if not self._do("open", self._server.wake("kv_cache"), self._config.vllm.switch_timeout_s):
                self._fail_now("vLLM was woken in full, and says that a part of its memory is still asleep")
            self._cache_asleep = False
            self._believe(self._guard.awake())
        self._do("open", self._flights.open(), self._config.vllm.switch_timeout_s)
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
            require("pause", self._state, "open", "paused", "frozen")
            self._state = "paused"
        if state != "paused":
            self._do("pause", self._flights.pause(clear_cache=self._resets), self._config.pause_timeout_s)
        self._docket.wait_until_empty(self._config.pause_timeout_s)
        self._docket.check()

    def freeze(self) -> None:
        """Stops vLLM between two tokens; returns when its device is idle."""
        with self._docket.changed:
            if self._started() == "frozen":
                return
            require("freeze", self._state, "open")
            if self._config.vllm.prefix_cache == "reset":
                raise EngineError("freeze with prefix_cache reset: what is in flight holds on to the cache; set prefix_cache to auto")
            self._state = "frozen"
        self._do("freeze", self._flights.freeze(), self._config.pause_timeout_s)

    def sleep(self) -> None:
        """Gives the memory of weights and cache back, where the device can."""
        if self._started() == "asleep":
            return
        require("sleep", self._state, "paused")
        self._ready = False
        self._guard.going_to_sleep()
        self._fall_asleep()

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

    def _fall_asleep(self) -> None:
        self._do("sleep", self._server.sleep(), self._config.vllm.switch_timeout_s)
        self._believe(self._guard.asleep())
        self._cache_asleep = True
        self._set("asleep")

    def _believe(self, complaint: str) -> None:
        """What vLLM has said of its memory, unless the driver says otherwise."""
        if complaint:
            self._fail_now(complaint)

    def _salt(self) -> str | None:
        return str(self._version) if self._config.vllm.prefix_cache in ("auto", "salt") else None

    @property
    def _resets(self) -> bool:
        """The prefix cache is emptied as long as it is like this. What is frozen holds on to its part of it."""
        return self._config.vllm.prefix_cache in ("auto", "reset") and self._state != "frozen"

    def _do(self, what: str, coroutine: Coroutine[object, object, T], timeout_s: float) -> T:
        """One step of vLLM's. If it fails, nobody knows what state vLLM is in, so the engine has failed."""
        try:
            return self._server.call(what, coroutine, timeout_s)
        except EngineError as error:
            self._give_back()
            self._fail(str(error))
            self._docket.check()
            raise

    def _give_back(self) -> None:
        """What is frozen ends with the tokens it had: they were there before anything failed. vLLM answers that without its core."""
        if self._state == "frozen":
            with suppress(EngineError):
                self._server.call("give back", self._flights.abort_all(), GIVE_BACK_S)

    def _fail(self, reason: str) -> None:
        self._docket.fail(reason)
        if self._server.running:
            self._server.post(self._flights.drop)

    def _fail_now(self, reason: str) -> NoReturn:
        self._give_back()
        self._fail(reason)
        self._docket.check()
        raise EngineError(reason)

    def _started(self) -> EngineState:
        with self._docket.changed:
            self._docket.check()
            return require_started(self._state)

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
