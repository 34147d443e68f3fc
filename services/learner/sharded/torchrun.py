"""What torchrun, or whoever else starts ranks, says in the environment of each."""

from __future__ import annotations

import os
from dataclasses import dataclass

from bus.errors import ConfigError
from services.learner.config import LearnerConfig


@dataclass(frozen=True, slots=True)
class Torchrun:
    """This process is rank `rank` of `size`, and the `local_rank`-th on its machine."""

    rank: int
    size: int
    local_rank: int

    @classmethod
    def here(cls) -> Torchrun | None:
        """None: this process was started as the only one."""
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
            return None
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return cls(rank, size, int(os.environ.get("LOCAL_RANK", rank)))

    def check(self, config: LearnerConfig) -> None:
        """Raises ConfigError when there are other ranks than are configured."""
        if self.size != config.ranks:
            raise ConfigError(
                f"actor.ranks is {config.ranks}, and {self.size} ranks were started: start as many as that, or plan the run with "
                f"actor.ranks={self.size}"
            )
