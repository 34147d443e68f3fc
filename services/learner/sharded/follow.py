"""The process of a rank other than 0: joins, and does what rank 0 says until there is nothing more to do.

    python -m services.learner.sharded.follow --meeting FD --ready FD --rank R --ranks N --backend cpu|cuda --timeout-s S
        [--device CORES]

Exit codes: 0 rank 0 said so, 2 the ranks do not agree, 1 anything else, with its traceback.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from bus.errors import ConfigError, LearnerError
from services.devices import cores_of, is_cuda
from services.exit_codes import ENDED, FAILED, MISTAKEN
from services.learner.config import LearnerConfig
from services.learner.environment import THREADS
from services.learner.sharded.local_ranks import meeting_at, say_ready
from services.learner.sharded.torchrun import Torchrun
from services.logs import log_to_stderr

if TYPE_CHECKING:
    from services.learner.sharded.group import RankGroup

logger = logging.getLogger(__name__)


def follow(group: RankGroup, config: LearnerConfig | None, local_rank: int) -> None:
    """Until rank 0 ends it. `config`: this rank's own, None: it takes that of rank 0. Raises ConfigError, LearnerError."""
    from services.agreement import Publishing
    from services.learner.reproducible import make_reproducible
    from services.learner.sharded.agreement import facts_here
    from services.learner.sharded.messages import Begin, BeginCycle, End, Gather, pack_facts, pack_reply, unpack_command

    group.tell(pack_facts(facts_here(config, group.size)))
    begin = unpack_command(group.hear())
    assert isinstance(begin, Begin), begin
    if begin.refused:
        raise ConfigError(begin.refused)
    from services.learner.sharded.rank import Rank  # takes seconds, which nobody waits for who is refused

    config = config or LearnerConfig.model_validate_json(begin.config)
    make_reproducible(config)
    rank = Rank(config, Publishing(begin.steps_per_version, keeps_caches=begin.keeps_caches), group, local_rank)
    while not isinstance(command := unpack_command(group.hear(patiently=True)), End):
        reply = rank.perform(command)
        if not isinstance(command, Gather | BeginCycle):
            group.tell(pack_reply(reply))


def follow_torchrun(config: LearnerConfig, torchrun: Torchrun) -> int:
    """A rank that torchrun started; returns the exit code."""

    def join() -> RankGroup:
        from services.learner.sharded.group import RankGroup

        torchrun.check(config)
        return RankGroup(torchrun.rank, torchrun.size, config.device, config.rank_timeout_s, None)

    return _run(join, config, torchrun.rank, torchrun.local_rank)


def main(arguments: list[str]) -> int:
    """The process's command line, written by `local_ranks`."""
    parser = argparse.ArgumentParser(prog="services.learner.sharded.follow")
    parser.add_argument("--meeting", type=int, required=True)
    parser.add_argument("--ready", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--backend", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--device", default="")
    parser.add_argument("--timeout-s", type=float, required=True)
    parser.add_argument("--log-level", type=int, default=logging.INFO)
    given = parser.parse_args(arguments)
    log_to_stderr(given.log_level)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is interrupted is rank 0; this ends with it
    if given.device and not is_cuda(given.device):
        cores = cores_of(given.device)
        os.sched_setaffinity(0, cores)
        os.environ.update(dict.fromkeys(THREADS, str(len(cores))))

    def join() -> RankGroup:
        from services.learner.sharded import rank  # what takes long to load
        from services.learner.sharded.group import RankGroup

        logger.info("rank starts: rank=%d of=%d pid=%d loaded=%s", given.rank, given.ranks, os.getpid(), rank.__name__)
        say_ready(given.ready, given.rank)
        return RankGroup(given.rank, given.ranks, given.backend, given.timeout_s, meeting_at(given.meeting))

    return _run(join, None, given.rank, given.rank)


def _run(join: Callable[[], RankGroup], config: LearnerConfig | None, rank: int, local_rank: int) -> int:
    try:
        group = join()
        follow(group, config, local_rank)
        group.close()
    except ConfigError as error:
        logger.error("rank cannot run: rank=%d error=%s", rank, error)
        return MISTAKEN
    except LearnerError as error:
        logger.error("rank ends: rank=%d error=%s", rank, error)
        return FAILED
    except Exception:
        # The outermost loop of this process: the exit code tells rank 0, and its connections are closed.
        logger.exception("rank failed: rank=%d", rank)
        return FAILED
    return ENDED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
