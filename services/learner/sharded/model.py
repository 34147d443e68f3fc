"""A causal language model of which each rank holds a part; a layer is whole on a rank only while it is computed.

initial model, whole, on the CPU ──one layer after the other──▶ n-th of each tensor on the device
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from services.learner.anchors import Weights
from services.learner.causal_lm import choose_layout, load_model, own_tensors
from services.learner.config import LearnerConfig
from services.learner.forward import answer_logprobs
from services.learner.passes import Layout, Pass
from services.learner.sharded.group import RankGroup
from services.learner.sharded.parts import collect, local, rows_of


class ShardedModel:
    """One rank's part. Raises ConfigError for a model folder that cannot be used."""

    def __init__(self, config: LearnerConfig, group: RankGroup, mesh: DeviceMesh) -> None:
        self._config = config
        self._group = group
        self._mesh = mesh
        self._model = load_model(config, "cpu")
        self.layout: Layout = choose_layout(self._model) if config.layout == "auto" else config.layout
        self._names = list(own_tensors(self._model.state_dict()))
        self._called: set[str] = set()
        self._watch_calls()
        _shard(self._model, mesh)
        self.parameters: dict[str, torch.nn.Parameter] = dict(self._model.named_parameters())
        """Shared out: their shapes are those of the whole."""
        self.parts = _Parts(self.parameters)
        """What this rank has of them, by name; it shares their memory."""

    @property
    def module(self) -> PreTrainedModel:
        """The model. Calling it is a collective."""
        return self._model

    def published(self) -> dict[str, torch.Tensor]:
        """What a publication holds, by name; shared out, except buffers."""
        state = self._model.state_dict()
        return {name: state[name] for name in self._names}

    def rows(self, whole: torch.Tensor) -> torch.Tensor:
        """A copy of this rank's part of a tensor that is whole."""
        return whole[rows_of(len(whole), self._group.rank, self._group.size)].clone()

    def shared_out(self, whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """A tensor that is whole, as this rank's part of one that lies as `like` does."""
        own = self.rows(whole).to(local(like).device)
        return DTensor.from_local(own, self._mesh, [Shard(0)], run_check=False, shape=like.shape, stride=like.stride())

    def collected(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `collect`; a buffer is whole everywhere."""
        return collect(local(tensor), tensor.shape, self._group) if isinstance(tensor, DTensor) else tensor.cpu()

    def forward(self, tensors: Pass, weights: Weights | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """See `answer_logprobs`; `weights`: this rank's part of others than the current ones, without gradient. A collective."""
        if weights is None:
            return answer_logprobs(self._config, self._model, tensors)
        with self._exchanged(weights):
            return answer_logprobs(self._config, self._model, tensors)

    def reached(self) -> dict[str, bool]:
        """Parameter -> whether a pass since the last time that this was asked has come by it here. One that no token was sent to, such as
        an expert's, has zeros for a gradient, where a model that is whole on one rank has none."""
        called, self._called = self._called, set()
        return {
            name: name.rpartition(".")[0] in called or (parameter.grad is not None and bool(local(parameter.grad).any()))
            for name, parameter in self.parameters.items()
        }

    def move(self, device: str) -> None:
        """Takes this rank's part to a device."""
        module: torch.nn.Module = self._model
        module.to(device)
        self.parameters.update(self._model.named_parameters())

    def _watch_calls(self) -> None:
        def watch(name: str, module: torch.nn.Module) -> None:
            module.register_forward_pre_hook(lambda *_: self._called.add(name) if torch.is_grad_enabled() else None)

        for name, module in self._model.named_modules():
            if next(module.parameters(recurse=False), None) is not None:
                watch(name, module)

    @contextmanager
    def _exchanged(self, weights: Weights) -> Iterator[None]:
        """The model has `weights`, and these tensors what the model has; so nothing lies in memory a third time."""
        _exchange(self.parts, weights)
        try:
            yield
        finally:
            _exchange(self.parts, weights)


class _Parts(Mapping[str, torch.Tensor]):
    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters = parameters

    def __getitem__(self, name: str) -> torch.Tensor:
        return local(self._parameters[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


def _exchange(parts: Mapping[str, torch.Tensor], weights: Weights) -> None:
    with torch.no_grad():
        for name, part in parts.items():
            kept = part.clone()
            part.copy_(weights[name])
            weights[name].copy_(kept)


def _shard(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Each layer is gathered for itself, what is in none (embedding, head, last norm) for all of a pass."""
    for layer in [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    # After a pass without gradient nothing may stay gathered: the weights change before the next one.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Shares of tokens are those of the whole batch, so the ranks' gradients are added up, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            # A rank whose tokens miss an expert sends zeros for it, as the others send what they have.
            module.set_reduce_scatter_unused_params(True, recurse=False)
