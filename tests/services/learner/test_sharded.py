"""Several ranks, each a process, train as one does: up to rounding, and among themselves bit for bit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from bus.errors import CheckpointError, ConfigError, LearnerError
from services.learner.config import LearnerConfig
from services.learner.digests import weights_digest
from services.learner.hf import HfLearner
from services.learner.plain import Plain
from services.learner.protocol import Learner
from services.learner.sharded.group import RankGroup
from services.learner.sharded.lead import ShardedLearner
from services.learner.tensor_file import Later, LaterTensors
from services.learner.wire import as_published, published_digest
from services.samples import SampleGroup
from services.weights.store import WeightStore, load_weights
from tests.services.learner.factories import make_answer, make_batch, save_tiny_qwen2
from tests.services.learner.test_hf import train

LR = 1e-3
WEIGHTS_TOLERANCE = 0.05 * LR
"""Of a weight after some steps. AdamW's steps have the size of the rate whatever the gradient's, so rounding shows most where it is ~0."""
MEASURE_TOLERANCE = 1e-4

RICH = {"old_logprobs": "recompute", "use_kl_loss": True, "epochs": 2, "rollout_is_threshold": 1.2, "max_grad_norm": 0.05}


def settings(model: Path, ranks: int, **more: object) -> LearnerConfig:
    given = {"model": str(model), "lr": LR, "num_threads": 1, "ranks": ranks, "rank_timeout_s": 120.0}
    return LearnerConfig.model_validate(given | more)


def one_rank(model: Path, **more: object) -> HfLearner:
    return HfLearner(settings(model, 1, **more), total_steps=10)


def assert_alike(ours: Learner, theirs: Learner) -> None:
    weights, expected = ours.weights(), theirs.weights()
    assert list(weights) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, atol=WEIGHTS_TOLERANCE, rtol=0)


def assert_measured_alike(ours: Mapping[str, float], theirs: Mapping[str, float]) -> None:
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, rel=MEASURE_TOLERANCE, abs=MEASURE_TOLERANCE * 0.1), name


@pytest.fixture(scope="module")
def pair_made(tiny_model: Path) -> Iterator[ShardedLearner]:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    learner = ShardedLearner(settings(tiny_model, 2, **RICH), total_steps=10)
    yield learner
    learner.close()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture(scope="module")
def initial(pair_made: ShardedLearner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("initial") / "checkpoint"
    pair_made.save(folder)
    return folder


@pytest.fixture
def pair(pair_made: ShardedLearner, initial: Path) -> ShardedLearner:
    """Two ranks with the initial weights. They are the same in all tests: starting one takes seconds."""
    pair_made.load(initial)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    return pair_made


def test_two_ranks_train_as_one_does(pair: ShardedLearner, tiny_model: Path) -> None:
    alone = one_rank(tiny_model, **RICH)
    assert pair.layout == alone.layout == "packed"
    for step in (1, 2, 3, 4):
        assert_measured_alike(train(pair, step).metrics, train(alone, step).metrics)
        if step == 2:
            pair.begin_cycle()
            alone.begin_cycle()
    assert_alike(pair, alone)


def test_publishing_never_has_the_whole_model_beside_the_file(pair: ShardedLearner, tmp_path: Path) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    collected = pair.weights()
    assert isinstance(collected, LaterTensors)

    def counted(later: Later | Plain) -> Later:
        assert isinstance(later, Later)

        def take() -> torch.Tensor:
            assert not [found for found in alive if found() is not None], "the one before was written already"
            tensor = later.take()
            alive.append(weakref.ref(tensor))
            return tensor

        return Later(later.shape, later.dtype, take)

    one_by_one = LaterTensors({name: counted(later) for name, later in collected.later.items()})
    notice = WeightStore("ranks", "file", tmp_path).publish(as_published(one_by_one, "bfloat16"), 0, 0, 1)
    assert len(alive) == len(collected)
    assert notice.digest == published_digest(dict(collected), "bfloat16") == load_weights(notice.uri, notice.digest).digest


def test_the_same_batches_give_two_ranks_the_same_bits_again(pair: ShardedLearner, initial: Path) -> None:
    first = [train(pair, step).metrics for step in (1, 2)]
    digest = weights_digest(pair.weights())
    pair.load(initial)
    assert [train(pair, step).metrics for step in (1, 2)] == first
    assert weights_digest(pair.weights()) == digest


def test_a_checkpoint_in_mid_cycle_goes_on_bit_for_bit_and_fits_a_learner_of_one_rank(
    pair: ShardedLearner, tiny_model: Path, tmp_path: Path
) -> None:
    train(pair, 1)
    train(pair, 2)
    pair.save(tmp_path / "step-2")
    saved = weights_digest(pair.weights())
    expected = train(pair, 3).metrics
    digest = weights_digest(pair.weights())
    pair.load(tmp_path / "step-2")
    assert pair.step == 2
    assert train(pair, 3).metrics == expected
    assert weights_digest(pair.weights()) == digest
    alone = one_rank(tiny_model, **RICH)
    alone.load(tmp_path / "step-2")
    assert weights_digest(alone.weights()) == saved
    assert_measured_alike(train(alone, 3).metrics, expected)
    alone.save(tmp_path / "step-3")
    pair.load(tmp_path / "step-3")
    assert weights_digest(pair.weights()) == weights_digest(alone.weights())


def test_a_checkpoint_that_a_rank_cannot_use_changes_nothing(pair: ShardedLearner, tmp_path: Path) -> None:
    train(pair, 1)
    before = weights_digest(pair.weights())
    pair.save(tmp_path / "torn")
    file = tmp_path / "torn" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    other = one_rank(save_tiny_qwen2(tmp_path / "other", hidden_size=64))
    other.save(tmp_path / "of-another")
    for folder, reason in (("torn", "is torn"), ("of-another", "is of another model"), ("absent", "is missing")):
        with pytest.raises(CheckpointError, match=reason):
            pair.load(tmp_path / folder)
    assert (pair.step, weights_digest(pair.weights())) == (1, before)
    train(pair, 2)


def test_a_loss_that_is_not_finite_stops_every_rank_before_the_weights_change(pair: ShardedLearner) -> None:
    train(pair, 1)
    before = weights_digest(pair.weights())
    group = make_batch(5, num_groups=1)[0]
    answers = (make_answer((3, 4), 3e38), make_answer((5,), -3e38), make_answer((6,), 0.0))
    batch = [SampleGroup(1, group.prompt_tokens, answers)]
    endless = [SampleGroup(1, group.prompt_tokens, (make_answer((3, 4), 1.0, (float("nan"), -1.0)), make_answer((5,), 0.0)))]
    for unusable in (endless, batch):
        try:
            pair.train(2, unusable, [[0]])
        except LearnerError as error:
            assert "weights unchanged" in str(error)  # noqa: PT017  (of two batches it is enough that one is refused)
            break
    else:
        pytest.fail("both were trained")
    assert (pair.step, weights_digest(pair.weights())) == (1, before)
    train(pair, 2)


def test_a_batch_of_one_answer_leaves_a_rank_idle_and_counts_once(pair: ShardedLearner, tiny_model: Path) -> None:
    alone = one_rank(tiny_model, **RICH)
    batch = [SampleGroup(1, (3, 4, 5), (make_answer((6, 7, 8), 1.0), make_answer((), 0.0)))]
    assert_measured_alike(pair.train(1, batch, [[0]]).metrics, alone.train(1, batch, [[0]]).metrics)
    assert_alike(pair, alone)


def test_what_one_rank_refuses_several_refuse_and_go_on(pair: ShardedLearner) -> None:
    with pytest.raises(LearnerError, match="step 3 cannot follow step 0"):
        train(pair, 3)
    batch = [SampleGroup(1, (3, 99), (make_answer((6, 7), 1.0), make_answer((5,), 0.0)))]
    with pytest.raises(LearnerError, match="token 99 is not in the vocabulary of 16"):
        pair.train(1, batch, [[0]])
    pair.offload()
    pair.reload()
    train(pair, 1)


def test_a_process_has_one_sharded_learner_at_a_time(pair: ShardedLearner, tiny_model: Path) -> None:
    with pytest.raises(LearnerError, match="close that one first"):
        RankGroup(0, 2, "cpu", 1.0, tiny_model / "meeting")
    train(pair, 1)


def ranks_started_here() -> dict[int, int]:
    """Rank -> process id, of the ranks that this process started and that have not ended."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_text().split("\0")
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == os.getpid() and "services.learner.sharded.follow" in words:
                found[int(words[words.index("--rank") + 1])] = int(folder.name)
    return found


def test_four_ranks_train_as_one_does_until_one_is_killed_which_the_others_notice(pair_made: ShardedLearner, tmp_path: Path) -> None:
    pair_made.close()  # it is the last test that could use it
    untied = save_tiny_qwen2(tmp_path / "untied", hidden_size=64, tied=False)
    more: dict[str, object] = {
        "layout": "padded",
        "gradient_checkpointing": True,
        "entropy_coeff": 0.1,
        "loss_agg_mode": "seq-mean-token-mean",
    }
    alone, four = one_rank(untied, **more), ShardedLearner(settings(untied, 4, **more), total_steps=10)
    try:
        for step in (1, 2, 3):
            assert_measured_alike(train(four, step).metrics, train(alone, step).metrics)
        assert_alike(four, alone)
        started = ranks_started_here()
        assert sorted(started) == [1, 2, 3]
        os.kill(started[2], signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(LearnerError, match=r"rank \d \(process \d+\) has ended with"):
                train(four, 4)
    finally:
        four.close()
    assert not ranks_started_here()


FOLLOWER = """
import sys
from services.learner.config import LearnerConfig
from services.learner.sharded.follow import follow_torchrun
from services.learner.sharded.torchrun import Torchrun
from services.logs import log_to_stderr
log_to_stderr()
sys.exit(follow_torchrun(LearnerConfig.model_validate_json(sys.argv[1]), Torchrun.here()))
"""


def start_follower(config: LearnerConfig) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FOLLOWER, config.model_dump_json()]
    return subprocess.Popen(command, env=os.environ | {"RANK": "1", "LOCAL_RANK": "1"}, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("their_lr", [LR, 2 * LR])
def test_ranks_that_torchrun_started_meet_and_those_that_disagree_on_the_config_are_refused(
    their_lr: float, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    follower = start_follower(settings(tiny_model, 2, lr=their_lr))
    try:
        if their_lr == LR:
            learner = ShardedLearner(settings(tiny_model, 2), total_steps=10)
            train(learner, 1)
            learner.close()
        else:
            with pytest.raises(ConfigError, match=r"rank 1 of 2 .* actor.lr is 0.002 there and 0.001 on rank 0"):
                ShardedLearner(settings(tiny_model, 2), total_steps=10)
        said = follower.communicate(timeout=60)[1]
    finally:
        follower.kill()
    assert follower.returncode == (0 if their_lr == LR else 2), said
    assert ("actor.lr is 0.002" in said) == (their_lr != LR)


SILENT = """
import sys, time
from pathlib import Path
from services.learner.sharded.group import RankGroup
group = RankGroup(1, 2, "cpu", 60.0, Path(sys.argv[1]))
group.hear()
time.sleep(60)
"""


def test_a_rank_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SILENT, str(tmp_path / "meeting")])
    try:
        group = RankGroup(0, 2, "cpu", 60.0, tmp_path / "meeting")
        group.tell(b"go on", 1)
        with pytest.raises(LearnerError, match=r"rank 1 has ended, or said nothing for 0\.5 s"):
            group.hear(1, within_s=0.5)
        group.close()
    finally:
        process.kill()
        process.wait()


HANGING = """
import os, signal, sys, threading, time
from services.learner.sharded.local_ranks import LocalRanks
ranks = LocalRanks(2, "cpu", "", 60.0)
ranks.watch(lambda: True, notice_s=0.2)
os.kill(int(ranks.process_ids[1]), signal.SIGKILL)
time.sleep(60)
"""


def test_a_process_that_waits_for_a_rank_that_is_gone_ends_by_itself() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGING], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 4, ended.stderr
    assert "rank 1" in ended.stderr
    assert "has ended with signal 9, and what needs it does not return" in ended.stderr
