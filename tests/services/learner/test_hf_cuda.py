"""What only a CUDA device can show: offloading frees it, and the same batches give the same bits there, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.learner.digests import weights_digest
from tests.services.learner.test_hf import make_learner, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


ANCHORED = {"old_logprobs": "recompute", "use_kl_loss": True, "entropy_coeff": 0.01, "gradient_checkpointing": True}


@pytest.mark.parametrize("settings", [{}, ANCHORED], ids=["plain", "anchored"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_batches_give_the_same_bits_also_around_an_offload(tiny_model: Path, dtype: str, settings: dict[str, object]) -> None:
    learner, twin = (make_learner(tiny_model, device="cuda", dtype=dtype, **settings) for _ in range(2))
    assert train(learner, 1).metrics == train(twin, 1).metrics
    learner.offload()
    learner.reload()
    assert train(learner, 2).metrics == train(twin, 2).metrics
    assert weights_digest(learner.weights()) == weights_digest(twin.weights())


@pytest.mark.parametrize(("settings", "copies"), [({}, 3), (ANCHORED, 5)], ids=["plain", "anchored"])
def test_offloading_frees_the_device(tiny_model: Path, settings: dict[str, object], copies: int) -> None:
    """Weights and two moments; with anchors also those of the reference and of the start of the cycle."""
    before = torch.cuda.memory_allocated()
    learner = make_learner(tiny_model, device="cuda", **settings)
    train(learner, 1)
    model_bytes = sum(tensor.nbytes for tensor in learner.weights().values())
    assert torch.cuda.memory_allocated() - before >= copies * model_bytes
    learner.offload()
    # Workspaces of the libraries may stay, model and moments may not.
    assert torch.cuda.memory_allocated() - before < model_bytes + 16 * 2**20


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_is_close_to_that_on_the_cpu(tiny_model: Path, dtype: str) -> None:
    ours = train(make_learner(tiny_model, device="cuda", dtype=dtype), 1).metrics
    theirs = train(make_learner(tiny_model), 1).metrics
    assert ours["actor/loss"] == pytest.approx(theirs["actor/loss"], abs=1e-2)
    assert ours["actor/grad_norm"] == pytest.approx(theirs["actor/grad_norm"], rel=5e-2)
