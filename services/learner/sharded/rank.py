"""What every rank does, rank 0 like the others: the same commands in the same order, for much of it is collective.

Train:  passes ─▶ forward, loss, backward (all-gather, reduce-scatter) ─▶ norm over all ranks finite? ─▶ clip ─▶ AdamW on the own part
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh

from bus.errors import CheckpointError, ConfigError, LearnerError
from services.agreement import Publishing
from services.learner.accumulation import Accumulation
from services.learner.anchors import CYCLE_START, AnchorWeights, Weights
from services.learner.causal_lm import vocabulary_size
from services.learner.checkpoint import MODEL, State, first_difference, read_checkpoint
from services.learner.config import LearnerConfig
from services.learner.hf import KIND
from services.learner.moments import OPTIMIZER, moments_saved, moments_to_save, move_moments
from services.learner.objective import Anchors
from services.learner.passes import Layout
from services.learner.sharded.group import RankGroup
from services.learner.sharded.messages import BeginCycle, Build, Command, Gather, Keep, Load, Move, Reply, Train, Update
from services.learner.sharded.model import ShardedModel
from services.learner.sharded.parts import collect, local
from services.learner.tally import TallyParts, total_of

logger = logging.getLogger(__name__)

RAISED = {kind.__name__: kind for kind in (ConfigError, LearnerError, CheckpointError)}
"""Errors that a rank tells of and survives."""
_NORM_EPS = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""

Moments = dict[int, dict[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class _Read:
    """A checkpoint's content that is to be used."""

    step: int
    model: Mapping[str, torch.Tensor]
    moments: Moments
    cycle: tuple[int, Weights]


class Rank:
    """One rank's part of a learner, without a model until `Build`."""

    def __init__(self, config: LearnerConfig, publishing: Publishing, group: RankGroup, local_rank: int) -> None:
        self._config = config
        self._publishing = publishing
        self._group = group
        self._local_rank = local_rank
        self._step = 0
        self._read: _Read | None = None
        self._built: _Built | None = None

    @property
    def step(self) -> int:
        """Number of the last step trained."""
        return self._step

    @property
    def layout(self) -> Layout:
        """The layout of passes that suits the model."""
        return self._model.layout

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids that the model embeds."""
        return vocabulary_size(self._model.module)

    def perform(self, command: Command) -> Reply:
        """Does what rank 0 says. An error that leaves the rank in order is in the reply; any other is raised, and the rank is of no use."""
        try:
            match command:
                case Build():
                    self._build(command)
                case Train():
                    return Reply(updates=self._train(command))
                case Load():
                    self._load(Path(command.folder))
                case Keep():
                    self._keep(use=command.use)
                case Move():
                    self._move(self._config.device if command.home else "cpu")
                case BeginCycle():
                    self._anchors.begin_cycle(self._step)
                case Gather():
                    self.collect(command.part, command.name)
                case _:
                    raise NotImplementedError(command)
        except (ConfigError, LearnerError) as error:
            return Reply(type(error).__name__, str(error))
        return Reply()

    def collect(self, part: str, name: str) -> torch.Tensor:
        """A tensor, whole on rank 0; every rank does it at once."""
        if part == CYCLE_START:
            return collect(self._cycle_start()[name], self._model.parameters[name].shape, self._group)
        tensors = self._model.published() if part == MODEL else moments_to_save(self._optimizer, self._model.parameters)
        return self._model.collected(tensors[name])

    def state(self) -> State:
        """Scalars of a checkpoint."""
        ranks = {"ranks": self._group.size}
        return {"kind": KIND, "step": self._step, "torch": torch.__version__, "layout": self.layout, **ranks, **self._anchors.state()}

    def contents(self) -> dict[str, dict[str, torch.Tensor]]:
        """A checkpoint's parts with what is in them: shapes are those of the whole, to be had by `collect`."""
        tensors = {MODEL: self._model.published(), OPTIMIZER: moments_to_save(self._optimizer, self._model.parameters)}
        if self._cycle_start():
            tensors[CYCLE_START] = dict(self._model.parameters)
        return tensors

    @property
    def _model(self) -> ShardedModel:
        return self._there.model

    @property
    def _optimizer(self) -> torch.optim.AdamW:
        return self._there.optimizer

    @property
    def _anchors(self) -> AnchorWeights:
        return self._there.anchors

    @property
    def _there(self) -> _Built:
        assert self._built is not None, "Build comes first"
        return self._built

    def _cycle_start(self) -> Weights:
        return self._anchors.parts(self._step).get(CYCLE_START, {})

    def _build(self, command: Build) -> None:
        """Ranks of one machine take turns, so that only one whole model is in its memory."""
        if self._config.device == "cuda":
            torch.cuda.set_device(self._local_rank)
        mesh = init_device_mesh(self._config.device, (self._group.size,))
        failed: ConfigError | None = None
        for turn in range(command.turns):
            if turn == command.turn:
                try:
                    self._built = _Built(self._config, self._publishing, ShardedModel(self._config, self._group, mesh))
                except ConfigError as error:
                    failed = error
            if any(value for (value,) in self._group.everywhere([failed is not None])):
                break
        if failed is not None:
            raise failed

    def _train(self, command: Train) -> list[Update]:
        self._anchors.keep(self._step)
        anchors: list[Anchors] = []
        updates = [self._update(command, anchors) for _ in range(self._config.epochs)]
        self._step = command.step
        return updates

    def _update(self, command: Train, anchors: list[Anchors]) -> Update:
        """One optimizer update. Raises LearnerError, on every rank alike, before the weights change."""
        started = time.monotonic()
        parts = self._there.accumulation.run(self._step, command.passes, command.num_tokens, anchors).parts()
        loss, grad_norm = self._together(parts)
        computed = time.monotonic()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self._optimizer.zero_grad(set_to_none=True)
            raise LearnerError(
                f"step {command.step}: loss {loss}, gradient norm {grad_norm}: weights unchanged; lower lr or look at the batch"
            )
        self._clip(grad_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = command.rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return Update(parts, grad_norm, {"forward_backward": computed - started, "optimizer": time.monotonic() - computed})

    def _together(self, parts: TallyParts) -> tuple[float, float]:
        """Loss and norm of the gradient, over all ranks. Parameters that no rank's tokens reached have no gradient afterwards."""
        reached = self._model.reached()
        own = [self._square_of_gradient(), parts.totals.get("actor/loss", 0.0), *reached.values()]
        squares, losses, *by_parameter = zip(*self._group.everywhere(own), strict=True)
        for name, anywhere in zip(reached, by_parameter, strict=True):
            if not any(anywhere):
                self._model.parameters[name].grad = None
        return total_of(losses), math.sqrt(total_of(squares))

    def _gradients(self) -> list[torch.Tensor]:
        return [local(parameter.grad) for parameter in self._model.parameters.values() if parameter.grad is not None]

    def _square_of_gradient(self) -> float:
        squares = [torch.linalg.vector_norm(gradient, dtype=torch.float64).square() for gradient in self._gradients()]
        return float(torch.stack(squares).sum()) if squares else 0.0

    def _clip(self, grad_norm: float) -> None:
        scale = self._config.max_grad_norm / (grad_norm + _NORM_EPS)
        for gradient in self._gradients() if scale < 1 else ():
            gradient.mul_(scale)

    def _load(self, folder: Path) -> None:
        checkpoint = read_checkpoint(folder)
        step, saved = checkpoint.step(KIND), checkpoint.part(MODEL)
        expected = {name: tensor.shape for name, tensor in self._model.published().items()}
        if {name: tensor.shape for name, tensor in saved.items()} != expected:
            raise CheckpointError(f"{folder / 'model.safetensors'} {first_difference(saved, expected)}: it is of another model")
        moments = moments_saved(checkpoint, self._model.parameters)
        cycle = self._anchors.saved(checkpoint, step)
        self._read = _Read(step, saved, moments, cycle)

    def _keep(self, *, use: bool) -> None:
        read, self._read = self._read, None
        if not use or read is None:
            return
        for name, tensor in self._model.published().items():
            own = local(tensor)
            with torch.no_grad():
                own.copy_(self._model.rows(read.model[name]) if own.shape != tensor.shape else read.model[name])
        parameters = list(self._model.parameters.values())
        moments = {
            number: {key: self._moment(value, parameters[number]) for key, value in state.items()} for number, state in read.moments.items()
        }
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.state.clear()  # what was and what comes need not fit into memory together
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self._anchors.restore(*read.cycle)
        self._step = read.step

    def _moment(self, value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """AdamW's number of updates has no dimension, and is the same everywhere."""
        return self._model.shared_out(value, parameter) if value.dim() else value

    def _move(self, device: str) -> None:
        if self._config.device == "cpu":
            return
        self._optimizer.zero_grad(set_to_none=True)
        self._model.move(device)
        move_moments(self._optimizer, device)
        self._anchors.move(device)
        torch.cuda.empty_cache()


class _Built:
    """All that needs the model."""

    def __init__(self, config: LearnerConfig, publishing: Publishing, model: ShardedModel) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(
            model.parameters.values(), lr=config.lr, betas=config.betas, eps=config.adam_eps, weight_decay=config.weight_decay
        )
        self.anchors = AnchorWeights(config, model.parts, model.rows)
        self.accumulation = Accumulation(config, model.layout, publishing, self.anchors, model.forward)
