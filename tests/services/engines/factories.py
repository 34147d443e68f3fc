"""Engines for the contract tests: one on a tiny model made on the spot, one scripted."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from transformers.cache_utils import DynamicCache

from services.engines.config import EngineConfig
from services.engines.embedded import EmbeddedEngine
from services.engines.protocol import Engine, GenerateOutput, GenerateRequest, Sampling
from services.engines.script import Fault, Operation, Script, varying_length
from services.engines.scripted import ScriptedEngine
from services.engines.vllm import VllmEngine
from services.engines.vllm_server import VllmServer
from services.transformers_names import cache_argument
from tests.services.engines.vllm_factories import vllm_model

VOCAB = 32
DEADLY_TOKEN = 31
STOPPING = Sampling(stop_token_ids=(7,))
LONG = 4000
"""New tokens that take any of the engines here more than a second; no answer stops before them by itself unless it is STOPPING."""

Kind = Literal["embedded", "scripted", "vllm"]
Flaw = Literal["none", "second_load_fails", "crashes_on_deadly_token"]


def tiny_config(**changes: object) -> Qwen2Config:
    """A model of some thousand weights."""
    numbers = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 8192}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    nothing_special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = Qwen2Config.from_dict({**numbers, **heads, **nothing_special, **changes})
    assert isinstance(config, Qwen2Config)
    return config


def random_model(config: PretrainedConfig, seed: int) -> torch.nn.Module:
    """With weights large enough that it prefers some tokens; the same for the same seed, whatever ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data *= 6
    return model


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


class FragileConfig(Qwen2Config):
    model_type = "fragile"


class FragileForCausalLM(Qwen2ForCausalLM):
    """A model whose forward fails when it sees the deadly token, like one whose device is lost."""

    config_class = FragileConfig

    def forward(self, input_ids: torch.Tensor, **kwargs: object) -> object:
        if bool((input_ids == DEADLY_TOKEN).any()):
            raise RuntimeError("the device is lost")
        return super().forward(input_ids, **kwargs)


AutoConfig.register("fragile", FragileConfig)
AutoModelForCausalLM.register(FragileConfig, FragileForCausalLM)


def ask(
    request: str,
    max_new_tokens: int = 12,
    prompt: tuple[int, ...] = (1, 2, 3),
    prefix: tuple[int, ...] = (),
    sampling: Sampling | None = None,
    seed: int = 0,
) -> GenerateRequest:
    """A request with sensible values."""
    return GenerateRequest(request, prompt, prefix, max_new_tokens, sampling or Sampling(), seed)


def collect(engine: Engine, count: int, within_s: float = 60.0) -> dict[str, GenerateOutput]:
    """Polls until so many outputs are there; fails if an id comes twice."""
    outputs: dict[str, GenerateOutput] = {}
    deadline = time.monotonic() + within_s
    while len(outputs) < count:
        assert time.monotonic() < deadline, f"{len(outputs)} of {count} outputs after {within_s} s: {sorted(outputs)}"
        for output in engine.poll(0.5):
            assert output.request not in outputs, f"{output.request} has two outputs"
            outputs[output.request] = output
    return outputs


def wait_for_tokens(engine: Engine, count: int, within_s: float = 60.0) -> None:
    """Returns when the engine has generated so many more tokens."""
    wanted = engine.stats().generated_tokens + count
    deadline = time.monotonic() + within_s
    while engine.stats().generated_tokens < wanted:
        assert time.monotonic() < deadline, f"{count} tokens have not come in {within_s} s"
        time.sleep(0.001)


def own_logprobs(output: GenerateOutput, version: int, prompt: tuple[int, ...] = (1, 2, 3)) -> list[float]:
    """Log-probabilities of the sampled tokens, of the model that vLLM serves, by the plain forward of transformers."""
    model = random_model(vllm_model(VOCAB), version)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, *output.tokens]])).logits[0, len(prompt) - 1 : -1]
    picked: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(output.tokens)[:, None])[:, 0].tolist()
    return picked


def logprobs_over_updates(output: GenerateOutput, config: PretrainedConfig, prompt: tuple[int, ...] = (1, 2, 3)) -> list[float]:
    """The same of an answer over several versions, one token after the other: each by the weights that drew it, over what others cached."""
    versions = [span.version for span in output.spans for _ in range(span.num_tokens)]
    models = {version: random_model(config, version) for version in versions}
    cache, fed, picked = DynamicCache(config=config), prompt, []
    with torch.inference_mode():
        for token, version in zip(output.tokens, versions, strict=True):
            model = models[version]
            assert isinstance(model, PreTrainedModel)
            logits = model(input_ids=torch.tensor([fed]), use_cache=True, **{cache_argument(model): cache}).logits[0, -1]
            picked.append(float(logits.log_softmax(-1)[token]))
            fed = (token,)
    return picked


@dataclass
class Workshop:
    """Builds engines of one kind, the weights they take, and closes them."""

    kind: Kind
    folder: Path
    engines: list[Engine] = field(default_factory=list)
    vllm_server: VllmServer | None = None
    """One that runs, for engines of kind vllm without a flaw."""

    @property
    def continuing(self) -> Sampling:
        """With which an answer that was continued is the one of a single go: vLLM draws anew after an abort."""
        return Sampling(temperature=0) if self.kind == "vllm" else Sampling()

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        """Weights that differ with the version."""
        return weights_of(random_model(vllm_model(VOCAB) if self.kind == "vllm" else tiny_config(), version))

    def torn_weights(self) -> dict[str, torch.Tensor]:
        """Weights of which one is missing. (A scripted engine looks at none: it fails by its flaw.)"""
        weights = self.weights(2)
        del weights["model.norm.weight"]
        return weights

    def build(self, flaw: Flaw = "none", rows: int = 8, max_model_len: int = LONG + 96) -> Engine:
        """An engine that was started: asleep."""
        config = EngineConfig(max_running_requests=rows, max_model_len=max_model_len)
        makers = {"embedded": self._embedded, "scripted": self._scripted, "vllm": self._vllm}
        engine = makers[self.kind](config, flaw)
        self.engines.append(engine)
        engine.start()
        return engine

    def open(self, flaw: Flaw = "none", rows: int = 8, max_model_len: int = LONG + 96) -> Engine:
        """An engine that serves weights of version 1."""
        engine = self.build(flaw, rows, max_model_len)
        engine.wake()
        engine.load_weights(self.weights(1), 1)
        engine.open()
        return engine

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def _embedded(self, config: EngineConfig, flaw: Flaw) -> Engine:
        model_config = tiny_config()
        if flaw == "crashes_on_deadly_token":
            model_config = FragileConfig(**{name: value for name, value in model_config.to_dict().items() if name != "model_type"})
        model_config.save_pretrained(self.folder)
        return EmbeddedEngine(config, self.folder)

    def _vllm(self, config: EngineConfig, flaw: Flaw) -> Engine:
        # The tests' vLLM is one that crashes on the deadly token in any case.
        vllm_model(VOCAB).save_pretrained(self.folder)
        return VllmEngine(config, self.folder, server=self.vllm_server)

    def _scripted(self, config: EngineConfig, flaw: Flaw) -> Engine:
        faults: dict[Flaw, dict[Operation, Fault]] = {
            "none": {},
            "second_load_fails": {"load_weights": Fault("fail", call=2)},
            "crashes_on_deadly_token": {"generate": Fault("fail", call=4)},
        }
        stopping = varying_length(10, 60)

        def answer_length(request: GenerateRequest) -> int:
            return stopping(request) if request.sampling.stop_token_ids else 10 * LONG

        return ScriptedEngine(config, Script(answer_length, tokens_per_second=2000, vocab_size=VOCAB, faults=faults[flaw]))
