"""What only a CUDA device can show of lending it: engine and learner take turns on it, each leaves it, and both say the same.

Needs neither vLLM nor a server: `pytest tests/services/learner/test_hf_cuda.py tests/services/engines/test_embedded_cuda.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from services.agreement import Publishing
from services.engines.config import EngineConfig
from services.engines.embedded import EmbeddedEngine
from services.engines.protocol import Sampling
from services.learner.config import LearnerConfig
from services.learner.digests import weights_digest
from services.learner.hf import HfLearner
from services.samples import Answer, SampleGroup
from tests.services.engines.factories import ask, collect, random_model, tiny_config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = "cuda"
MIB = 1 << 20
SAME = "rollout/logprob_diff_same_version"
PROMPTS = ((1, 2, 3), (4, 5, 6, 7, 8), (9,))
SWINGS = 4


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """Of some million weights, so that their memory is told from that of libraries."""
    config = tiny_config(hidden_size=1024, intermediate_size=4096, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4)
    model = random_model(config, 1)
    for parameter in model.parameters():
        parameter.data /= 6
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    return tmp_path


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(model_folder: Path, dtype: str) -> Iterator[EmbeddedEngine]:
    made = EmbeddedEngine(
        EngineConfig.model_validate({"max_model_len": 128, "max_running_requests": 16, "dtype": dtype}), model_folder, DEVICE
    )
    made.start()
    yield made
    made.close()


@pytest.fixture
def learner(model_folder: Path, dtype: str) -> Iterator[HfLearner]:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    config = {"model": str(model_folder), "lr": 1e-4, "device": DEVICE, "dtype": dtype}
    yield HfLearner(LearnerConfig.model_validate(config), SWINGS, publishing=Publishing())
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def held() -> int:
    torch.cuda.synchronize()
    return torch.cuda.memory_reserved()


def answered(engine: EmbeddedEngine, seed: int) -> list[SampleGroup]:
    names = [(number, answer) for number in range(len(PROMPTS)) for answer in range(4)]
    for number, answer in names:
        engine.submit(ask(f"{seed}.{number}.{answer}", 32, PROMPTS[number], sampling=Sampling(), seed=100 * seed + answer))
    outputs = collect(engine, len(names))
    return [
        SampleGroup(
            number,
            prompt,
            tuple(
                Answer(output.tokens, output.logprobs, output.spans, "length", float(sum(output.tokens) % 7))
                for output in (outputs[f"{seed}.{number}.{answer}"] for answer in range(4))
            ),
        )
        for number, prompt in enumerate(PROMPTS)
    ]


def test_swings_between_engine_and_learner_move_all_memory_and_keep_every_bit(
    engine: EmbeddedEngine, learner: HfLearner, dtype: str
) -> None:
    home = held()
    size = sum(tensor.nbytes for tensor in learner.weights().values())
    for version in range(SWINGS):
        learner.begin_cycle()
        before = weights_digest(learner.weights())
        learner.offload()
        away = held()
        assert home - away > 0.9 * size
        engine.wake()
        engine.load_weights(learner.weights(), version)
        engine.open()
        assert held() > away
        batch = answered(engine, version + 1)
        engine.pause()
        engine.sleep()
        assert held() - away < 16 * MIB
        learner.reload()
        assert weights_digest(learner.weights()) == before
        metrics = learner.train(version + 1, batch, [[0, 1, 2]]).metrics
        assert metrics[f"{SAME}_tokens"] == len(PROMPTS) * 4 * 32
        # Sums in another order; in bfloat16 each of them rounded.
        assert metrics[f"{SAME}_mean"] < (1e-3 if dtype == "float32" else 0.05)
        home = held()
