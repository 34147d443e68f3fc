"""What only the vLLM engine has: on a real vLLM, which is started once for all of them."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

import pytest
import torch

from bus.errors import ConfigError, EngineError
from services.engines.config import EngineConfig, VllmConfig
from services.engines.protocol import Sampling
from services.engines.vllm import VllmEngine
from services.engines.vllm_arguments import engine_arguments, starting_environment
from services.engines.vllm_flights import to_output
from services.engines.vllm_folder import PREFIX
from services.engines.vllm_probe import missing
from services.engines.vllm_server import VllmServer
from services.weights.store import WeightStore, load_weights
from tests.disks import largest_file
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.factories import LONG, VOCAB, Workshop, ask, collect, own_logprobs, random_model, wait_for_tokens, weights_of
from tests.services.engines.vllm_factories import vllm_model

S = 30.0


@NEEDS_VLLM
def test_log_probabilities_are_those_of_the_trainers_forward_after_every_update(vllm: Workshop) -> None:
    engine = vllm.open()
    for version in (1, 2, 3):
        if version > 1:
            engine.pause()
            engine.load_weights(vllm.weights(version), version)
            engine.open()
        engine.submit(ask("r", 100, seed=version))
        output = collect(engine, 1)["r"]
        assert output.logprobs == pytest.approx(own_logprobs(output, version), abs=1e-3)
        assert {span.version for span in output.spans} == {version}


@NEEDS_VLLM
def test_greedy_tokens_are_those_of_the_plain_forward(vllm: Workshop) -> None:
    engine = vllm.open()
    engine.submit(ask("r", 100, sampling=Sampling(temperature=0)))
    tokens = collect(engine, 1)["r"].tokens
    with torch.inference_mode():
        logits = random_model(vllm_model(VOCAB), 1)(input_ids=torch.tensor([[1, 2, 3, *tokens]])).logits[0, 2:-1]
    assert tokens == tuple(logits.argmax(-1).tolist())


@NEEDS_VLLM
def test_c42259_log_probabilities_are_of_the_renormalised_distribution_that_was_sampled_from(vllm: Workshop) -> None:
    engine = vllm.open()
    engine.submit(ask("r", 50, sampling=Sampling(temperature=0.7, top_k=3)))
    output = collect(engine, 1)["r"]
    model = random_model(vllm_model(VOCAB), 1)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[1, 2, 3, *output.tokens]])).logits[0, 2:-1] / 0.7
    kept, places = logits.topk(3, dim=-1)
    expected = [
        row[list(place).index(token)].item() for row, place, token in zip(kept.log_softmax(-1), places.tolist(), output.tokens, strict=True)
    ]
    assert output.logprobs == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logits"])
def test_log_probabilities_of_another_space_than_training_takes_are_refused(mode: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="distribution that was sampled from"):
        engine_arguments(EngineConfig(kind="vllm", vllm=VllmConfig(kwargs={"logprobs_mode": mode})), tmp_path, "cpu")


def test_what_swingshift_sets_itself_cannot_be_set_by_engine_kwargs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout.engine_kwargs.max_num_seqs cannot be set: it is rollout.max_running_requests"):
        engine_arguments(EngineConfig(kind="vllm", vllm=VllmConfig(kwargs={"max_num_seqs": 3})), tmp_path, "cpu")


def test_starting_leaves_the_environment_as_it_was(tmp_path: Path) -> None:
    before = dict(os.environ)
    with starting_environment({"ONE": "1"}, tmp_path, tmp_path / "errors"):
        assert os.environ["ONE"] == "1"
        os.environ["LD_PRELOAD"] = "what vLLM sets"
    assert dict(os.environ) == before


def test_the_probe_names_what_an_installed_package_lacks() -> None:
    needed = {"json:JSONDecoder.decode": ("s", "weight_version"), "json:nothing": (), "no_such_package_at_all:x": (), "json:loads": ("s",)}
    assert missing(needed) == ["json:JSONDecoder.decode(weight_version)", "json:nothing", "no_such_package_at_all:x"]


@NEEDS_VLLM
def test_c28_no_token_that_older_weights_cached_is_used(vllm: Workshop) -> None:
    engine = vllm.open()
    prompt = tuple(number % 30 + 1 for number in range(600))
    for version in (1, 2):
        if version == 2:
            engine.pause()
            engine.load_weights(vllm.weights(2), 2)
            engine.open()
        for attempt in range(2):
            engine.submit(ask(f"{version}.{attempt}", 20, prompt, seed=1))
            output = collect(engine, 1)[f"{version}.{attempt}"]
            assert output.logprobs == pytest.approx(own_logprobs(output, version, prompt), abs=1e-3)


@NEEDS_VLLM
def test_c28_the_same_holds_with_caches_that_are_salted_by_version(vllm_server: VllmServer, tmp_path: Path, vllm: Workshop) -> None:
    vllm_model(VOCAB).save_pretrained(tmp_path)
    config = EngineConfig(kind="vllm", max_running_requests=8, max_model_len=4096, vllm=VllmConfig(prefix_cache="salt"))
    engine = VllmEngine(config, tmp_path, server=vllm_server)
    engine.start()
    engine.wake()
    prompt = tuple(number % 30 + 1 for number in range(600))
    for version in (1, 2):
        engine.pause()
        engine.load_weights(vllm.weights(version), version)
        engine.open()
        engine.submit(ask(f"{version}", 20, prompt, seed=1))
        output = collect(engine, 1)[f"{version}"]
        assert output.logprobs == pytest.approx(own_logprobs(output, version, prompt), abs=1e-3)
    engine.close()


@NEEDS_VLLM
def test_12284_a_prefix_cache_that_cannot_be_reset_is_an_error(vllm: Workshop, vllm_server: VllmServer) -> None:
    engine = vllm.open()
    engine.submit(ask("r", LONG, tuple([1] * 90)))
    wait_for_tokens(engine, 20)
    with pytest.raises(EngineError, match="did not reset its prefix cache"):
        vllm_server.call("reset", vllm_server.reset_prefix_cache(), S)


@NEEDS_VLLM
def test_57853_no_weight_update_reaches_an_engine_that_is_asleep(vllm: Workshop) -> None:
    engine = vllm.build()
    with pytest.raises(EngineError, match="load_weights in state asleep"):
        engine.load_weights(vllm.weights(1), 1)
    engine.wake()
    engine.load_weights(vllm.weights(1), 1)
    engine.open()
    engine.submit(ask("r"))
    assert collect(engine, 1)["r"].outcome == "length"


@NEEDS_VLLM
def test_44395_nothing_runs_before_all_of_the_memory_is_awake(vllm: Workshop, vllm_server: VllmServer) -> None:
    engine = vllm.build()
    engine.wake()
    engine.load_weights(vllm.weights(1), 1)
    with pytest.raises(EngineError, match="still paused or asleep"):
        vllm_server.call("resume", vllm_server.resume(), S)
    engine.submit(ask("early"))
    assert collect(engine, 1)["early"].outcome == "refused"
    vllm_server.call("sleep", vllm_server.sleep(), S)


@NEEDS_VLLM
def test_45326_nothing_waits_in_a_queue_of_vllm_over_a_pause(vllm: Workshop) -> None:
    engine = vllm.open(rows=4)
    for number in range(12):
        engine.submit(ask(f"r{number}", LONG, seed=number))
    wait_for_tokens(engine, 8)
    engine.pause()
    outputs = {output.request: output for output in engine.poll(0)}
    assert len(outputs) == 12
    before = engine.stats().generated_tokens
    engine.open()
    engine.submit(ask("after", 5))
    assert len(collect(engine, 1)["after"].tokens) == 5
    assert engine.stats().generated_tokens == before + 5


@NEEDS_VLLM
def test_published_weights_go_to_vllm_as_the_file_they_are(vllm: Workshop, tmp_path: Path) -> None:
    engine = vllm.build()
    store = WeightStore("vllm-test", "file", tmp_path / "published")
    weights = vllm.weights(4)
    # Of tied ones, any: here the one that vLLM's model does not have.
    del weights["model.embed_tokens.weight"]
    notice = store.publish(weights, 4, 0, 1)
    engine.wake()
    engine.load_weights(load_weights(notice.uri, notice.digest), 4)
    engine.open()
    engine.submit(ask("r", 30))
    output = collect(engine, 1)["r"]
    assert output.logprobs == pytest.approx(own_logprobs(output, 4), abs=1e-3)
    assert not list(Path("/dev/shm").glob("swingshift-weights-*"))


@NEEDS_VLLM
def test_its_process_is_on_the_same_cores(vllm_server: VllmServer) -> None:
    assert vllm_server.pids
    for pid in vllm_server.pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            assert os.sched_getaffinity(int(task)) <= os.sched_getaffinity(0)


@NEEDS_VLLM
def test_what_it_listens_on_cannot_be_reached_from_elsewhere(vllm_server: VllmServer) -> None:
    sockets = {os.readlink(path) for pid in (os.getpid(), *vllm_server.pids) for path in Path(f"/proc/{pid}/fd").iterdir() if path.exists()}
    tcp = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = {fields[1].split(":")[0] for fields in tcp if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets}
    assert listening <= {"0100007F", "00000000000000000000000001000000"}, "an address of this machine, as the kernel writes it"
    files = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    named = [Path(fields[7]) for fields in files if len(fields) > 7 and f"socket:[{fields[6]}]" in sockets and fields[7].startswith("/")]
    assert any(path.parent.name.startswith(PREFIX) for path in named)
    assert all(path.parent.stat().st_mode & 0o077 == 0 for path in named if path.parent.name.startswith(PREFIX))
    assert not [path for path in named if path.parent == Path(tempfile.gettempdir())]


@NEEDS_VLLM
def test_weights_for_whose_file_there_is_no_room_never_reach_vllm(vllm: Workshop) -> None:
    engine = vllm.open()
    engine.pause()
    with largest_file(1000), pytest.raises(EngineError, match="weights cannot be handed to vLLM"):
        engine.load_weights(vllm.weights(2), 2)
    assert engine.stats().version == 1
    engine.load_weights(vllm.weights(3), 3)
    engine.open()
    engine.submit(ask("r"))
    assert {span.version for span in collect(engine, 1)["r"].spans} == {3}
    assert not list(Path("/dev/shm").glob("swingshift-weights-*"))


@NEEDS_VLLM
@pytest.mark.parametrize("lacks", ["a log-probability", "a span", "a finite one"])
def test_c26_what_vllm_says_in_different_lengths_is_an_error_and_never_padded(lacks: str) -> None:
    from vllm.logprobs import FlatLogprobs, Logprob
    from vllm.outputs import CompletionOutput, WeightVersionSpan

    logprobs = FlatLogprobs()
    for token in (5, 6) if lacks == "a log-probability" else (5, 6, 7):
        logprobs.append({token: Logprob(math.nan if lacks == "a finite one" else -1.0)})
    spans = [WeightVersionSpan("3", 0, 2 if lacks == "a span" else 3)]
    completion = CompletionOutput(0, "", [5, 6, 7], None, logprobs, finish_reason="length", weight_versions=spans)
    output = to_output(ask("r", 3), completion)
    assert (output.outcome, output.tokens, output.logprobs, output.spans) == ("error", (), (), ())
    assert "3 tokens" in output.error


@NEEDS_VLLM
def test_weights_that_do_not_fit_never_reach_vllm(vllm: Workshop) -> None:
    engine = vllm.open()
    engine.pause()
    weights = weights_of(random_model(vllm_model(VOCAB), 2))
    weights["model.norm.weight"] = torch.zeros(3)
    with pytest.raises(EngineError, match=r"model.norm.weight has shape \(3,\)"):
        engine.load_weights(weights, 2)
    engine.load_weights(vllm.weights(2), 2)
    engine.open()
    assert engine.stats().version == 2
