"""Our engine for weight transfer, registered with vLLM. Runs in vLLM's workers, through vLLM's own update session.

    start_weight_update ▸ update_weights (each says by which way) … ▸ finish_weight_update

vLLM fixes the engine when it starts. So this one knows all ways, see `vllm_receivers`, and each update, and each worker, takes one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from vllm.config import VllmConfig
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from services.engines.vllm_receivers import FileReceiver, GlooReceiver, IpcReceiver, Receiver, VllmReceiver


@dataclass
class WayInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not in every environment
    """Which way is made ready, and what that one wants to know."""

    way: str = "file"
    info: dict[str, object] = field(default_factory=dict)


@dataclass
class WayUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]  # vLLM is not in every environment
    """By which way weights come, and what that one wants to know; `names` among it."""

    way: str
    info: dict[str, object]


class SwingshiftTransferEngine(WeightTransferEngine[WayInitInfo, WayUpdateInfo]):  # type: ignore[misc]  # as above
    """Loads weights in checkpoint format, whichever way they come."""

    init_info_cls = WayInitInfo
    update_info_cls = WayUpdateInfo

    def __init__(self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self._receivers: dict[str, Receiver] = {}
        self._expected: set[str] = set()
        self._loaded: set[str] = set()

    def init_transfer_engine(self, init_info: WayInitInfo) -> None:
        """Makes one way ready, anew if it was before: the trainer's process may be another one."""
        if (former := self._receivers.pop(init_info.way, None)) is not None:
            former.close()
        receiver = self._make(init_info.way)
        receiver.join(init_info.info)
        self._receivers[init_info.way] = receiver

    def start_weight_update(self) -> None:
        """From here on the model's parameters take a checkpoint again, whatever they were made into after the last load."""
        # Each once, under its first name; while they are reloaded, tied ones are several.
        self._expected = {name for name, _ in self.model.named_parameters()}
        self._loaded = set()
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: Mapping[str, object]) -> None:
        """As the base class does it, but for CPUs, too, where there is no accelerator to wait for."""
        self.receive_weights(self.parse_update_info(dict(update_info)))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: WayUpdateInfo) -> None:
        """Loads what comes."""
        if update_info.way not in self._receivers:
            raise RuntimeError(f"weights come by {update_info.way}, which was not made ready: {', '.join(self._receivers)} were")
        self._receivers[update_info.way].receive(update_info.info)

    def finish_weight_update(self) -> None:
        """Makes the parameters again what the kernels want. Raises RuntimeError if one got nothing."""
        if left := sorted(self._expected - self._loaded):
            raise RuntimeError(f"{len(left)} of {len(self._expected)} parameters got no weights: {', '.join(left[:3])}")
        finalize_layerwise_reload(self.model, self.model_config)
        self._remake_tied()
        for receiver in self._receivers.values():
            receiver.finish()

    def shutdown(self) -> None:
        """Gives up every group."""
        for receiver in self._receivers.values():
            receiver.close()

    def _make(self, way: str) -> Receiver:
        match way:
            case "file":
                return FileReceiver(self._load)
            case "gloo":
                parallel = self.parallel_config
                return GlooReceiver(self._load, parallel.data_parallel_index * parallel.world_size + parallel.rank)
            case "nccl":
                from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

                return VllmReceiver(NCCLWeightTransferEngine(self.config, self.vllm_config, self.device, self.model), self._load)
            case "ipc":
                from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

                engine = IPCWeightTransferEngine(self.config, self.vllm_config, self.device, self.model)
                return IpcReceiver(engine, self._load, str(torch.cuda.get_device_properties(self.device.index).uuid))
        raise ValueError(f"there is no way {way!r} to take weights")

    def _load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        # Some models of vLLM's do not say what they have loaded.
        self._loaded |= set(self.model.load_weights(weights) or self._expected)

    def _remake_tied(self) -> None:
        """A layer whose weights are another's was not reloaded itself: what its kernels made of them is still that of the last ones."""
        for name, _ in self.model.named_parameters(remove_duplicate=False):
            if name not in self._expected:
                layer = self.model.get_submodule(name.rpartition(".")[0])
                if isinstance(method := getattr(layer, "quant_method", None), QuantizeMethodBase):
                    method.process_weights_after_loading(layer)
