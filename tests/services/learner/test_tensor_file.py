"""Files that are written tensor by tensor are safetensors files, byte for byte those that its own writer makes."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.learner.tensor_file import Later, LaterTensors, in_turn, write_tensors

TENSORS = {
    "b": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "step": torch.tensor(3.0),
    "empty": torch.empty(0, 4),
    "bytes": torch.arange(7, dtype=torch.uint8),
    "count": torch.tensor([2**40]),
}


def test_the_file_is_the_one_that_safetensors_writes(tmp_path: Path) -> None:
    write_tensors({name: Later.of(tensor) for name, tensor in TENSORS.items()}, tmp_path / "ours.safetensors")
    save_file(TENSORS, tmp_path / "theirs.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    read = load_file(tmp_path / "ours.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def take() -> torch.Tensor:
        tensor = torch.ones(1000)
        assert sum(reference() is not None for reference in alive) <= 1, "the one before was written already"
        alive.append(weakref.ref(tensor))
        return tensor

    later = {f"t{number}": Later(torch.Size([1000]), torch.float32, take) for number in range(5)}
    write_tensors(later, tmp_path / "file.safetensors")
    assert len(alive) == 5


def test_a_file_says_what_it_is_as_the_one_that_safetensors_writes(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    write_tensors(in_turn(TENSORS), ours, {"base": "x"})
    save_file(TENSORS, theirs, {"base": "x"})
    assert ours.read_bytes() == theirs.read_bytes()


def test_tensors_that_come_later_are_fetched_when_they_are_looked_at() -> None:
    taken: list[str] = []

    def later(name: str) -> Later:
        def take() -> torch.Tensor:
            taken.append(name)
            return TENSORS[name]

        return Later(TENSORS[name].shape, TENSORS[name].dtype, take)

    tensors = LaterTensors({name: later(name) for name in TENSORS})
    assert in_turn(tensors) is tensors.later
    assert (list(tensors), len(tensors), "b" in tensors, "x" in tensors, taken) == (list(TENSORS), len(TENSORS), True, False, [])
    assert torch.equal(tensors["a"], TENSORS["a"])
    assert taken == ["a"]


def test_a_kind_of_numbers_that_the_format_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="complex64"):
        write_tensors({"x": Later.of(torch.zeros(1, dtype=torch.complex64))}, tmp_path / "file.safetensors")
