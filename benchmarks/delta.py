"""How many bytes what changed in weights takes against all of them, after 1, 2, 4 and 8 steps at small learning rates.

    python -m benchmarks.delta [--lr 1e-6 …] [--hidden 256] [--layers 3]

The learner trains a model by AdamW on a task's answers and rewards. Its weights are published rounded to bfloat16, as training in bfloat16
publishes them (parameters and optimizer state are float32 then, too), against those of so many steps before, by the store that a trainer
has, and fetched as a replica does. At such rates most elements move by less than bfloat16 can tell, so most stay the same bits.

The last line is JSON: `ratio` of the bytes by learning rate and steps, `float32_ratio` the same of weights that are not rounded, `worst`
the largest of all ratios, and the seconds that the changes take at publication, and being applied. Exit status 1 if `worst` is over 1.01.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from rich.progress import Progress

from bus.events import WeightUpdateRequested
from services.learner.config import LearnerConfig
from services.learner.hf import HfLearner
from services.learner.wire import as_published
from services.samples import Answer, SampleGroup, VersionSpan
from services.tasks.model import ModelShape, make_model
from services.tasks.protocol import Task
from services.tasks.sorting import SortingTask
from services.weights.fetcher import WeightFetcher
from services.weights.store import WeightNotice, WeightStore

WARM_UP = 8
"""Steps before the first comparison: AdamW's first ones move every element by the whole learning rate."""
STEPS = (1, 2, 4, 8)
GROUPS, ANSWERS = 8, 4
LIMIT = 1.01


@dataclass(frozen=True, slots=True)
class Sync:
    """One publication against another, and what a replica that had that other needed for it."""

    ratio: float
    full_bytes: int
    publish_s: float
    publish_without_s: float
    apply_s: float
    whole_s: float


def groups(task: Task, step: int) -> list[SampleGroup]:
    """Answers to a step's prompts: a demonstration each, and others with a few tokens exchanged."""
    random, made = Random(step), []
    for number in range(GROUPS):
        prompt, right = task.demonstration(step * GROUPS + number, 0)
        assert not isinstance(prompt.reference, str)
        answers = []
        for wrong in range(ANSWERS):
            tokens = list(right)
            for _ in range(wrong):
                tokens[random.randrange(len(tokens))] = random.choice(prompt.tokens)
            reward = task.reward(prompt.tokens, tuple(tokens), prompt.reference)
            answers.append(Answer(tuple(tokens), (-1.0,) * len(tokens), (VersionSpan(0, len(tokens)),), "stop", reward))
        made.append(SampleGroup(step * GROUPS + number, prompt.tokens, tuple(answers)))
    return made


def syncs(weights: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor], dtype: str) -> Sync:
    """Publishes `base`, then `weights`, with changes and without, and fetches them."""
    base, weights = as_published(base, dtype), as_published(weights, dtype)
    with tempfile.TemporaryDirectory(prefix="swingshift-") as folder:
        plain = WeightStore("plain", "file", Path(folder) / "plain", delta="off")
        plain.publish(base, 0, 0, 1)
        without = plain.publish(weights, 1, 0, 1)
        store, fetcher = WeightStore("delta", "file", Path(folder) / "delta", delta="on"), WeightFetcher(Path(folder) / "delta", "on")
        fetcher.fetch(asked(store.publish(base, 0, 0, 1)))
        notice = store.publish(weights, 1, 0, 1)
        began = time.monotonic()
        fetcher.fetch(asked(notice))
        fetched = time.monotonic()
        WeightFetcher(Path(folder) / "plain", "off").fetch(asked(without))
        ended = time.monotonic()
        fetcher.close()
    ratio = 1.0 if notice.delta is None else notice.delta.num_bytes / notice.num_bytes
    return Sync(ratio, notice.num_bytes, notice.seconds, without.seconds, fetched - began, ended - fetched)


def asked(notice: WeightNotice) -> WeightUpdateRequested:
    return WeightUpdateRequested(
        replica="s0", epoch=1, version=notice.version, revision=0, uri=notice.uri, digest=notice.digest, delta=notice.delta
    )


def copied(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in weights.items()}


def train(model: Path, task: Task, lr: float, progress: Progress) -> tuple[dict[int, Sync], float]:
    """Steps since the base -> the sync; and the ratio of the first one without rounding."""
    config = LearnerConfig(
        model=str(model), lr=lr, num_threads=torch.get_num_threads(), old_logprobs="recompute", rollout_is="none",
        max_response_length=task.max_response_length,
    )  # fmt: skip
    last = WARM_UP + STEPS[-1]
    learner = HfLearner(config, last)
    found: dict[int, Sync] = {}
    base: dict[str, torch.Tensor] = {}
    unrounded = 0.0
    learner.begin_cycle()
    for step in progress.track(range(1, last + 1), description=f"training at {lr:g}"):
        learner.train(step, groups(task, step), [list(range(GROUPS))])
        learner.begin_cycle()
        if step == WARM_UP:
            base = copied(learner.weights())
        elif step - WARM_UP in STEPS:
            found[step - WARM_UP] = syncs(learner.weights(), base, "bfloat16")
            unrounded = unrounded or syncs(learner.weights(), base, "").ratio
    return found, unrounded


def measure(rates: Sequence[float], shape: ModelShape) -> dict[str, object]:
    """Every rate begins with the same weights."""
    task = SortingTask()
    with tempfile.TemporaryDirectory(prefix="swingshift-") as folder, Progress(disable=not sys.stderr.isatty(), transient=True) as progress:
        make_model(Path(folder), task, shape, 0)
        trained = {f"{lr:g}": train(Path(folder), task, lr, progress) for lr in rates}
    for lr, (found, unrounded) in trained.items():
        told = "   ".join(f"{steps} steps {100 * sync.ratio:5.2f} %" for steps, sync in found.items())
        sys.stdout.write(f"lr {lr:>6}: {told}   (1 step in float32 {100 * unrounded:.0f} %)\n")
    every = [sync for found, _ in trained.values() for sync in found.values()]
    return {
        "full_bytes": every[0].full_bytes,
        "ratio": {lr: {str(steps): round(sync.ratio, 4) for steps, sync in found.items()} for lr, (found, _) in trained.items()},
        "float32_ratio": {lr: round(unrounded, 4) for lr, (_, unrounded) in trained.items()},
        "worst": round(max(*(sync.ratio for sync in every), *(unrounded for _, unrounded in trained.values())), 4),
        "publish_s": _mean([sync.publish_s for sync in every]),
        "publish_without_s": _mean([sync.publish_without_s for sync in every]),
        "apply_s": _mean([sync.apply_s for sync in every]),
        "whole_s": _mean([sync.whole_s for sync in every]),
    }


def _mean(numbers: Sequence[float]) -> float:
    return round(sum(numbers) / len(numbers), 4)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-6, 3e-6, 1e-5, 1e-4])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    options = parser.parse_args(arguments)
    heads = max(1, options.hidden // 64)
    shape = ModelShape(
        hidden_size=options.hidden, intermediate_size=4 * options.hidden, num_layers=options.layers, num_heads=heads, num_kv_heads=heads
    )
    result = measure(options.lr, shape)
    sys.stdout.write(json.dumps(result) + "\n")
    worst = result["worst"]
    assert isinstance(worst, float)
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
