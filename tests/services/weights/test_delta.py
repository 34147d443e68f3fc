"""What changed in weights gives the new ones bit for bit, whatever they are, or is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bus.errors import WeightsError
from services.learner.digests import weights_digest
from services.weights import gaps
from services.weights.delta import apply, bits, changes
from services.weights.gaps import decode, encode, most_bytes

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
SHAPES = ((), (0,), (0, 3), (1,), (7,), (3, 5), (40, 50), (2, 3, 4))
PLENTY = 1 << 40

Weights = dict[str, torch.Tensor]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Weights, Weights]:
    """Weights, and later ones of the same model."""
    seed, count = draw(st.integers(0, 2**31)), draw(st.integers(0, 4))
    generator = torch.Generator().manual_seed(seed)
    base: Weights = {}
    new: Weights = {}
    for number in range(count):
        name, dtype, shape = f"a:layer.{number}", draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES))
        share = draw(st.sampled_from((0.0, 0.001, 0.02, 0.2, 0.6, 1.0)))
        base[name], new[name] = (random_bits(dtype, shape, generator) for _ in range(2))
        kept = torch.rand(shape, generator=generator) >= share
        new[name] = torch.where(kept, base[name], new[name]).reshape(shape)
        if draw(st.booleans()) and base[name].dim() == 2:
            base[name], new[name] = base[name].T, new[name].T
    return base, new


def random_bits(dtype: torch.dtype, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """All bits are possible, those of every NaN, too."""
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def applied(base: Weights, entries: Weights) -> Weights:
    """The base with the changes written over it."""
    result = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in base.items()}
    apply(entries, {name: bits(tensor) for name, tensor in result.items()}, {name: tensor.dtype for name, tensor in result.items()})
    return result


def entries_of(base: Weights, new: Weights) -> Weights:
    entries = changes(base, new, PLENTY)
    assert entries is not None
    return entries


@given(pairs())
@settings(max_examples=150, deadline=None)
def test_changes_applied_to_the_base_give_the_new_weights_bit_for_bit_in_no_more_bytes(pair: tuple[Weights, Weights]) -> None:
    base, new = pair
    entries = entries_of(base, new)
    assert weights_digest(applied(base, entries)) == weights_digest(new)
    assert sum(entry.nbytes for entry in entries.values()) <= sum(tensor.nbytes for tensor in new.values())


@given(pairs(), st.integers(0, 5), st.data())
@settings(max_examples=150, deadline=None)
def test_changes_that_were_damaged_are_refused_or_give_other_weights(pair: tuple[Weights, Weights], kind: int, data: st.DataObject) -> None:
    base, new = pair
    entries = {key: tensor.clone() for key, tensor in entries_of(base, new).items() if tensor.numel()}
    if not entries:
        return
    key = data.draw(st.sampled_from(sorted(entries)))
    flat = entries[key].reshape(-1)
    match kind:
        case 0:
            entries[key] = flat[:-1]
        case 1:
            entries[key] = torch.cat([flat, flat[:1]])
        case 2:
            entries[key] = flat.clone()
            bits(entries[key])[0] ^= 1
        case 3:
            del entries[key]
        case 4:
            entries["b" + key] = entries.pop(key)
        case _:
            entries[key.rpartition(":")[0] + ":other"] = entries.pop(key)
    try:
        result = applied(base, entries)
    except WeightsError:
        return
    assert weights_digest(result) != weights_digest(new)


@given(st.lists(st.integers(0, 70_000), max_size=50, unique=True), st.sampled_from((np.uint8, np.uint16)), st.sampled_from((4, 1 << 22)))
@settings(max_examples=100, deadline=None)
@example([0, 254, 255, 256, 511, 65_534, 65_535, 65_536], np.uint8, 4)
@example([0, 65_534, 65_535, 70_000], np.uint16, 4)
def test_positions_come_back_from_their_gaps_however_far_apart(places: list[int], code: type[np.uint8], chunk: int) -> None:
    before, gaps.CHUNK = gaps.CHUNK, chunk
    try:
        written = encode(np.array(sorted(places), dtype=np.int64), code)
        read = [int(place) for part in decode(written) for place in part]
    finally:
        gaps.CHUNK = before
    assert read == sorted(places)
    assert written.nbytes <= most_bytes(70_001, len(places), written.itemsize)


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (float("nan"), float("inf"))])
def test_another_sign_of_zero_is_a_change_and_the_same_nan_is_none(one: float, other: float) -> None:
    base = {"w": torch.full((300,), one)}
    new = {"w": base["w"].clone()}
    assert entries_of(base, new) == {}
    new["w"][7] = other
    assert weights_digest(applied(base, entries_of(base, new))) == weights_digest(new)


@pytest.mark.parametrize(
    ("share", "kind", "most"), [(0.0001, "gaps16", 0.001), (0.01, "gaps8", 0.016), (0.3, "mask", 0.37), (0.99, "all", 1.0)]
)
def test_the_way_that_takes_least_is_chosen(share: float, kind: str, most: float) -> None:
    torch.manual_seed(0)
    base = {"w": torch.randn(200_000).bfloat16()}
    chosen = torch.rand(200_000) < share
    new = {"w": torch.where(chosen, -base["w"], base["w"])}
    entries = entries_of(base, new)
    assert f"w:{kind}" in entries
    assert sum(entry.nbytes for entry in entries.values()) <= most * base["w"].nbytes


def test_more_than_the_limit_is_not_looked_at_any_further() -> None:
    base, new = {"w": torch.zeros(1000)}, {"w": torch.ones(1000)}
    assert changes(base, new, 3_999) is None
    assert changes(base, new, 4_000) is not None


@pytest.mark.parametrize("new", [{"v": torch.zeros(3)}, {"w": torch.zeros(4)}, {"w": torch.zeros(3).half()}, {}])
def test_weights_of_another_model_are_not_compared(new: Weights) -> None:
    with pytest.raises(WeightsError, match="not weights of one model"):
        changes({"w": torch.zeros(3)}, new, PLENTY)
