"""What ranks must have in common, for each computes a part of the same step: settings, code, versions, model, number of ranks."""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from services.code import code_digest
from services.learner.config import LearnerConfig
from services.learner.digests import file_digest

HOST = "host"
"""The only fact in which ranks may differ."""
_OF_A_MACHINE = ("model", "num_threads")
"""Settings that are not the same everywhere; of the model it is what lies in the folder that counts."""

Facts = Mapping[str, str]


def facts_here(config: LearnerConfig | None, ranks: int) -> dict[str, str]:
    """Of this process; `config`: its own, None when it takes that of rank 0."""
    facts = {
        HOST: socket.gethostname(),
        "number of ranks": str(ranks),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "transformers": metadata.version("transformers"),
        "code of the learner": code_digest("services.learner.sharded.rank"),
    }
    if config is None:
        return facts
    settings = {f"actor.{name}": json.dumps(value) for name, value in config.model_dump(mode="json").items() if name not in _OF_A_MACHINE}
    return facts | settings | {"model's config.json": _described(Path(config.model) / "config.json")}


def disagreement(facts: Sequence[Facts]) -> str:
    """In what the first rank that is not like rank 0 differs from it, for a message; empty: all agree."""
    for rank, theirs in enumerate(facts):
        different = [name for name, value in theirs.items() if name != HOST and facts[0].get(name, value) != value]
        if different:
            listed = "; ".join(f"{name} is {theirs[name]} there and {facts[0][name]} on rank 0" for name in different[:5])
            return (
                f"rank {rank} of {len(facts)} (on {theirs[HOST]}) differs from rank 0 (on {facts[0][HOST]}): {listed}. "
                "Start all ranks with the same configuration from the same checkout and environment"
            )
    return ""


def turns_of(facts: Sequence[Facts]) -> list[int]:
    """For each rank, how many others of its machine come before it."""
    hosts = [theirs[HOST] for theirs in facts]
    return [hosts[:rank].count(host) for rank, host in enumerate(hosts)]


def _described(path: Path) -> str:
    return file_digest(path) if path.is_file() else f"missing ({path})"
