"""The learner that several ranks are together, as the trainer's shell sees it: rank 0, which the other ranks follow.

train ─▶ advantages and shares of the whole batch ─▶ passes shared out by tokens ─▶ every rank ─▶ measures joined
weights, save ─▶ one tensor after the other, collected here
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from bus.errors import CheckpointError, LearnerError
from services.agreement import Publishing
from services.learner.batch import check_batch
from services.learner.checkpoint import MODEL, write_checkpoint
from services.learner.config import LearnerConfig
from services.learner.hf import ROOM_FOR_PROMPTS
from services.learner.passes import score
from services.learner.protocol import StepReport
from services.learner.reproducible import make_reproducible
from services.learner.schedule import learning_rate
from services.learner.sharded.messages import Command, Keep, Load, Move, Reply, Train
from services.learner.sharded.ranks import Ranks
from services.learner.sharded.sharing import share_out
from services.learner.tally import joined
from services.learner.tensor_file import Later, LaterTensors
from services.learner.weighing import check_lengths, check_vocabulary, step_report, weigh
from services.samples import SampleGroup


class ShardedLearner:
    """A `Learner`; one a process at a time. The same number of ranks gives the same bits; another number, the same up to rounding.

    Starts the other ranks, on the cores or GPUs of `device`, unless torchrun started this process as one of them. One that starts while
    its devices are lent begins `offloaded`, without touching them: it is reloaded before anything else. Raises ConfigError for a model
    folder that cannot be used and for ranks that do not agree, LearnerError when they cannot be started.
    """

    def __init__(
        self, config: LearnerConfig, total_steps: int, *, publishing: Publishing | None = None, device: str = "", offloaded: bool = False
    ) -> None:
        check_lengths(config)
        make_reproducible(config)
        self._config = config
        self._total_steps = total_steps
        self._ranks = Ranks(config, publishing or Publishing(), device)
        self._built = False
        self._offloaded = offloaded and config.device == "cuda"
        if not self._offloaded:
            self._build()

    @property
    def step(self) -> int:
        """Number of the last step trained; 0 for the initial weights."""
        return self._ranks.rank.step

    @property
    def layout(self) -> str:
        """The layout of passes in use; it belongs to what bits depend on."""
        return self._ranks.rank.layout

    def train(self, step: int, batch: Sequence[SampleGroup], micro_batches: Sequence[Sequence[int]]) -> StepReport:
        """See `Learner.train`. `micro_batches` give the order of the samples and, by the limits that they keep, the size of a pass."""
        if self._offloaded:
            raise LearnerError(f"step {step} cannot be trained while the learner is offloaded: reload it first")
        config = self._config
        check_batch(self.step, step, batch, micro_batches)
        advantages, shares = weigh(config, batch)
        answers = score(batch, advantages, shares, [index for micro_batch in micro_batches for index in micro_batch])
        check_vocabulary(step, answers, self._ranks.rank.vocabulary_size)
        budget = config.max_tokens_per_micro_batch
        layout = self._ranks.rank.layout
        shared_out = share_out(answers, config.ranks, layout, budget, budget * ROOM_FOR_PROMPTS)
        rate, num_tokens = learning_rate(config, step, self._total_steps), sum(len(answer.tokens) for answer in answers)
        replies = self._ranks.together([Train(step, rate, num_tokens, passes) for passes in shared_out])
        return step_report(config, batch, [_joined(replies, number, num_tokens, rate) for number in range(config.epochs)])

    def begin_cycle(self) -> None:
        """See `Learner.begin_cycle`."""
        self._ranks.begin_cycle()

    def weights(self) -> Mapping[str, torch.Tensor]:
        """See `Learner.weights`. A tensor is collected each time it is asked for, so that this process need never have them all."""
        return LaterTensors(self._later(MODEL, self._ranks.rank.contents()[MODEL]))

    def save(self, folder: Path) -> None:
        """See `Learner.save`. The folder is like that of a learner of one rank; one tensor at a time is collected for it."""
        parts = {part: LaterTensors(self._later(part, named)) for part, named in self._ranks.rank.contents().items()}
        write_checkpoint(folder, self._ranks.rank.state(), parts)

    def load(self, folder: Path) -> None:
        """See `Learner.load`; of any number of ranks."""
        if self._offloaded:
            raise LearnerError(f"{folder} cannot be loaded while the learner is offloaded: reload it first")
        try:
            self._everywhere(Load(str(folder)))
        except CheckpointError:
            self._everywhere(Keep(use=False))
            raise
        self._everywhere(Keep(use=True))

    def offload(self) -> None:
        """See `Learner.offload`."""
        if not self._offloaded:
            self._everywhere(Move(home=False))
            self._offloaded = self._config.device == "cuda"

    def reload(self) -> None:
        """See `Learner.reload`."""
        if self._offloaded:
            if self._built:
                self._everywhere(Move(home=True))
            else:
                self._build()
            self._offloaded = False

    def close(self) -> None:
        """See `Learner.close`."""
        self._ranks.close()

    def _build(self) -> None:
        try:
            self._ranks.build()
        except BaseException:
            self.close()
            raise
        self._built = True

    def _everywhere(self, command: Command) -> None:
        self._ranks.together([command] * self._config.ranks)

    def _later(self, part: str, contents: Mapping[str, torch.Tensor]) -> dict[str, Later]:
        """The tensors of a part, each made whole by all ranks together."""
        return {name: Later(what.shape, what.dtype, partial(self._ranks.collect, part, name)) for name, what in contents.items()}


def _joined(replies: Sequence[Reply], number: int, num_tokens: int, rate: float) -> StepReport:
    """The report of update `number` from what the ranks replied."""
    updates = [reply.updates[number] for reply in replies]
    metrics = joined([update.parts for update in updates], num_tokens)
    return StepReport(metrics={**metrics, "actor/grad_norm": updates[0].grad_norm, "actor/lr": rate}, seconds=updates[0].seconds)
