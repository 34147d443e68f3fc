"""The same weights say the same in trainer, embedded engine and vLLM, also after steps of training, publication and update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.agreement import Publishing
from services.engines.config import EngineConfig
from services.engines.embedded import EmbeddedEngine
from services.engines.protocol import Engine, GenerateOutput, Sampling
from services.engines.vllm import VllmEngine
from services.learner.config import LearnerConfig
from services.learner.hf import HfLearner
from services.samples import Answer, SampleGroup, VersionSpan
from services.weights.store import WeightStore, load_weights
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.factories import VOCAB, ask, collect, random_model
from tests.services.engines.vllm_factories import vllm_model
from tests.services.learner.factories import process_settings_restored

CONFIG = EngineConfig(max_running_requests=8, max_model_len=256, dtype="float32")
PROMPTS = ((1, 2, 3), (4, 5, 6, 7, 8, 9, 10), (11,), (12, 13, 14, 15))
UPDATES = 3
SAME, OLDER = "rollout/logprob_diff_same_version", "rollout/logprob_diff_older_version"
LIMIT = 1e-3


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    random_model(vllm_model(VOCAB), 1).save_pretrained(folder)  # type: ignore[operator]
    return folder


@pytest.fixture(autouse=True)
def _restore_process_settings() -> Iterator[None]:
    with process_settings_restored():
        yield


@pytest.fixture(params=["embedded", pytest.param("vllm", marks=NEEDS_VLLM)])
def engine(request: pytest.FixtureRequest, model_folder: Path) -> Iterator[Engine]:
    made: Engine
    if request.param == "vllm":
        made = VllmEngine(CONFIG, model_folder, server=request.getfixturevalue("vllm_server"))
    else:
        made = EmbeddedEngine(CONFIG, model_folder)
    made.start()
    made.wake()
    yield made
    made.close()


class Pair:
    """A learner, and an engine that gets its weights as they are published."""

    def __init__(self, engine: Engine, model_folder: Path, **settings: object) -> None:
        config = {"model": str(model_folder), "lr": 1e-3, "num_threads": 1, "temperature": 0.8, **settings}
        self.engine = engine
        self.learner = HfLearner(LearnerConfig.model_validate(config), 20, publishing=Publishing(steps_per_version=2))
        self._store = WeightStore("agreement", "file", model_folder.parent / "published")

    def publish(self, version: int) -> None:
        self.learner.begin_cycle()
        notice = self._store.publish(self.learner.weights(), version, 0, 1)
        self.engine.pause()
        self.engine.load_weights(load_weights(notice.uri, notice.digest), version)
        self.engine.open()

    def batch(self, seed: int) -> list[SampleGroup]:
        """Two answers to each prompt, drawn by the engine; the rewards are arbitrary."""
        names = [(number, answer) for number in range(len(PROMPTS)) for answer in range(2)]
        for number, answer in names:
            request = ask(f"{seed}.{number}.{answer}", 24, PROMPTS[number], sampling=Sampling(temperature=0.8), seed=seed + 10 * answer)
            self.engine.submit(request)
        outputs = collect(self.engine, len(names))
        return [
            SampleGroup(number, prompt, tuple(answer_of(outputs[f"{seed}.{number}.{answer}"], answer) for answer in range(2)))
            for number, prompt in enumerate(PROMPTS)
        ]

    def train(self, batch: list[SampleGroup]) -> dict[str, float]:
        return dict(self.learner.train(self.learner.step + 1, batch, [[0, 1], [2, 3]]).metrics)


def answer_of(output: GenerateOutput, reward: float) -> Answer:
    return Answer(output.tokens, output.logprobs, output.spans, "length", reward)


def relabelled(batch: list[SampleGroup], version: int) -> list[SampleGroup]:
    """As an engine would hand it out that did not load the version that it was given."""
    return [
        SampleGroup(
            group.sample,
            group.prompt_tokens,
            tuple(
                Answer(answer.tokens, answer.logprobs, (VersionSpan(version, len(answer.tokens)),), answer.finish, answer.reward)
                for answer in group.answers
            ),
        )
        for group in batch
    ]


def test_log_probabilities_are_the_trainers_own_after_every_update(engine: Engine, model_folder: Path) -> None:
    pair = Pair(engine, model_folder)
    tokens = len(PROMPTS) * 2 * 24
    for version in range(UPDATES + 1):
        pair.publish(version)
        first, second = pair.batch(version), pair.batch(version + 100)
        exact, drifted = pair.train(first), pair.train(second)
        assert exact[f"{SAME}_tokens"] == tokens
        assert exact[f"{SAME}_max"] < LIMIT
        assert exact["rollout/logprob_diff_max"] == exact[f"{SAME}_max"]
        # The second step's tokens are of the same version too, but the weights have moved: not to be taken for a faulty engine.
        assert f"{SAME}_mean" not in drifted
        assert drifted["rollout/logprob_diff_mean"] > LIMIT


def test_a_version_that_the_engine_did_not_load_shows(engine: Engine, model_folder: Path) -> None:
    pair = Pair(engine, model_folder)
    pair.publish(0)
    old = pair.batch(1)
    pair.train(old)
    pair.train(old)
    pair.learner.begin_cycle()
    assert pair.train(relabelled(pair.batch(2), 1))[f"{SAME}_mean"] > LIMIT


def test_a_learner_that_keeps_the_weights_of_the_cycle_measures_in_every_step(engine: Engine, model_folder: Path) -> None:
    pair = Pair(engine, model_folder, old_logprobs="recompute")
    pair.publish(0)
    old, new = pair.batch(1), pair.batch(2)
    for metrics in (pair.train(old), pair.train(new)):
        assert metrics[f"{SAME}_max"] < LIMIT
    pair.publish(1)
    mixed = [*pair.batch(3)[:2], *new[2:]]
    metrics = pair.train(mixed)
    assert metrics[f"{SAME}_tokens"] == 2 * 2 * 24
    assert metrics[f"{SAME}_max"] < LIMIT < metrics[f"{OLDER}_mean"]


@NEEDS_VLLM
def test_vllm_and_the_embedded_engine_give_the_same_greedy_tokens(
    model_folder: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    engines: dict[str, Callable[[], Engine]] = {
        "embedded": lambda: EmbeddedEngine(CONFIG, model_folder),
        "vllm": lambda: VllmEngine(CONFIG, model_folder, server=request.getfixturevalue("vllm_server")),
    }
    answers = []
    for make in engines.values():
        engine = make()
        engine.start()
        engine.wake()
        pair = Pair(engine, model_folder)
        for version in range(UPDATES):
            pair.publish(version)
            for number, prompt in enumerate(PROMPTS):
                engine.submit(ask(f"{version}.{number}", 60, prompt, sampling=Sampling(temperature=0)))
            outputs = collect(engine, len(PROMPTS))
            answers.append([outputs[f"{version}.{number}"].tokens for number in range(len(PROMPTS))])
            # Steps on the same batches: those of a fixed one, for both.
            pair.train(fixed_batch(2 * version))
            pair.train(fixed_batch(2 * version + 1))
        engine.close()
    assert answers[:UPDATES] == answers[UPDATES:]
    assert answers[0] != answers[1]


def fixed_batch(seed: int) -> list[SampleGroup]:
    """The same whoever generates."""
    return [
        SampleGroup(
            number,
            prompt,
            tuple(
                Answer(
                    tuple((seed + number + 3 * place + 5 * answer) % VOCAB for place in range(8)),
                    (-3.0,) * 8, (VersionSpan(0, 8),), "length", answer,
                )
                for answer in range(2)
            ),
        )
        for number, prompt in enumerate(PROMPTS)
    ]  # fmt: skip
