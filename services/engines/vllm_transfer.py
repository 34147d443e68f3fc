"""Weights for vLLM from a file of the same host or of a shared folder. Runs in vLLM's workers, through its own update session.

    start_weight_update ▸ update_weights(path) ▸ finish_weight_update        every worker maps the file and takes its own shard

Nothing is copied on the way: the file is the publication itself, mapped; vLLM's loaders slice it by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class FileInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not in every environment
    """Nothing is agreed on beforehand."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]  # vLLM is not in every environment
    """Where the weights are, and which of them to take: the model's name -> that in the file."""

    path: str
    names: dict[str, str]


class FileWeightTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):  # type: ignore[misc]  # as above
    """Loads a safetensors file in checkpoint format."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Nothing to agree on."""

    def start_weight_update(self) -> None:
        """From here on the model's parameters take a checkpoint again, whatever they were made into after the last load."""
        # Each once, under its first name; while they are reloaded, tied ones are several.
        self._expected = {name for name, _ in self.model.named_parameters()}
        self._loaded: set[str] = set()
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: Mapping[str, object]) -> None:
        """As the base class does it, but for CPUs, too, where there is no accelerator to wait for."""
        self.receive_weights(self.parse_update_info(dict(update_info)))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Loads what the file holds."""
        # Some models of vLLM's do not say what they have loaded.
        self._loaded |= set(self.model.load_weights(_tensors(update_info)) or self._expected)

    def finish_weight_update(self) -> None:
        """Makes the parameters again what the kernels want. Raises RuntimeError if one got nothing."""
        if left := sorted(self._expected - self._loaded):
            raise RuntimeError(f"{len(left)} of {len(self._expected)} parameters got no weights: {', '.join(left[:3])}")
        finalize_layerwise_reload(self.model, self.model_config)
        self._remake_tied()

    def _remake_tied(self) -> None:
        """A layer whose weights are another's was not reloaded itself: what its kernels made of them is still that of the last ones."""
        for name, _ in self.model.named_parameters(remove_duplicate=False):
            if name not in self._expected:
                layer = self.model.get_submodule(name.rpartition(".")[0])
                if isinstance(method := getattr(layer, "quant_method", None), QuantizeMethodBase):
                    method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Nothing is held."""


def _tensors(update_info: FileUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(update_info.path, framework="pt", device="cpu") as file:
        for name, name_in_file in update_info.names.items():
            yield name, file.get_tensor(name_in_file)
