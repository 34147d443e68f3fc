"""All ranks, as rank 0 sees them: started or met, found to agree, and then told what to do together.

start or meet ─▶ facts of each ─▶ agree? ─▶ Build ─▶ [ command to each ─▶ own part ─▶ replies ]* ─▶ End
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bus.errors import ConfigError, LearnerError
from services.agreement import Publishing
from services.learner.config import LearnerConfig
from services.learner.sharded.agreement import Facts, disagreement, facts_here, turns_of
from services.learner.sharded.group import RankGroup
from services.learner.sharded.local_ranks import LocalRanks
from services.learner.sharded.messages import (
    Begin,
    BeginCycle,
    Build,
    Command,
    End,
    Gather,
    Reply,
    pack_command,
    unpack_facts,
    unpack_reply,
)
from services.learner.sharded.rank import RAISED, Rank
from services.learner.sharded.torchrun import Torchrun


class Ranks:
    """`rank` is this process's part. Raises ConfigError when the ranks do not agree, LearnerError when they do not come together."""

    def __init__(self, config: LearnerConfig, publishing: Publishing, device: str) -> None:
        torchrun = Torchrun.here()
        if torchrun is not None:
            torchrun.check(config)
        elif config.device == "cuda" and (there := torch.cuda.device_count()) < config.ranks:
            raise ConfigError(
                f"actor.ranks is {config.ranks}, and the trainer has {there} GPUs: name as many under devices.trainer, lower actor.ranks, "
                "or start the ranks on several machines with torchrun"
            )
        self._config = config
        self._broken = ""
        """Why they can do nothing together any more."""
        self._busy = False
        self._started = None if torchrun else LocalRanks(config.ranks, config.device, device, config.rank_timeout_s)
        self._group: RankGroup | None = None
        try:
            self._meet(publishing)
        except BaseException:
            self.close()
            raise
        self.rank = Rank(config, publishing, self._met, torchrun.local_rank if torchrun else 0)
        if self._started is not None:
            self._started.watch(lambda: self._busy)

    def build(self) -> None:
        """Every rank gets its part of the initial model. Raises ConfigError for one that cannot be used."""
        turns = max(self._turns) + 1
        self.together([Build(turn, turns) for turn in self._turns])

    def together(self, commands: Sequence[Command]) -> list[Reply]:
        """Rank r does `commands[r]`; returns what each replied. Raises the first rank's error."""
        self._check()
        self._busy = True
        try:
            self._tell(commands)
            replies = [self.rank.perform(commands[0]), *(unpack_reply(self._met.hear(rank)) for rank in self._others)]
        except (LearnerError, RuntimeError) as error:
            raise self._break(type(commands[0]).__name__, error) from error
        finally:
            self._busy = False
        for rank, reply in enumerate(replies):
            if reply.error:
                raise RAISED[reply.error](reply.text if rank == 0 else f"{reply.text} (on rank {rank})")
        return replies

    def begin_cycle(self) -> None:
        """Nobody waits for that. Raises LearnerError."""
        self._check()
        self._tell([BeginCycle()] * self._config.ranks)
        self.rank.perform(BeginCycle())

    def collect(self, part: str, name: str) -> torch.Tensor:
        """A tensor, whole, on the CPU. Raises LearnerError."""
        self._check()
        self._busy = True
        try:
            self._tell([Gather(part, name)] * self._config.ranks)
            return self.rank.collect(part, name)
        except (LearnerError, RuntimeError) as error:
            raise self._break("Gather", error) from error
        finally:
            self._busy = False

    def close(self) -> None:
        """Tells the others that there is nothing more to do, and ends those that were started here. Twice is once."""
        group, self._group = self._group, None
        if group is not None and self._started is None and not self._broken:
            self._end(group)
        if group is not None:
            group.close()
        if self._started is not None:
            self._started.close()

    @property
    def _met(self) -> RankGroup:
        if self._group is None:
            raise LearnerError("the learner was closed: make a new one")
        return self._group

    @property
    def _others(self) -> range:
        return range(1, self._config.ranks)

    def _check(self) -> None:
        """Raises LearnerError when a command would wait in vain."""
        if not self._broken and self._started is not None and (ended := self._started.ended()):
            self._broken = f"{ended}, and the others can do nothing without it: start again from the last checkpoint"
        if self._broken:
            raise LearnerError(self._broken)

    def _meet(self, publishing: Publishing) -> None:
        config, started = self._config, self._started
        if started is not None:
            started.wait_until_ready(config.rank_timeout_s)
        meeting = None if started is None else started.meeting
        self._group = RankGroup(0, config.ranks, config.device, config.rank_timeout_s, meeting)
        facts: list[Facts] = [facts_here(config, config.ranks), *(unpack_facts(self._group.hear(rank)) for rank in self._others)]
        refused = disagreement(facts)
        begin = Begin(config.model_dump_json(), publishing.steps_per_version, publishing.keeps_caches, refused)
        self._tell([begin] * config.ranks)
        if refused:
            self._broken = refused
            raise ConfigError(refused)
        self._turns = turns_of(facts)

    def _tell(self, commands: Sequence[Command]) -> None:
        for rank in self._others:
            self._met.tell(pack_command(commands[rank]), rank)

    def _end(self, group: RankGroup) -> None:
        try:
            for rank in self._others:
                group.tell(pack_command(End()), rank)
        except LearnerError:
            pass  # whoever cannot be told is gone already

    def _break(self, what: str, error: Exception) -> LearnerError:
        # Its connections are closed a moment before a process has ended.
        ended = self._started.ended(within_s=1.0) if self._started is not None else ""
        why = f"{ended}; {error}" if ended else str(error)
        self._broken = f"{what} failed on the {self._config.ranks} ranks: {why}; start again from the last checkpoint"
        return LearnerError(self._broken)
