"""Files that are written tensor by tensor are safetensors files, byte for byte those of its own writer, and are read as it reads them."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.learner.tensor_file import Later, LaterTensors, in_turn, read_tensors, write_tensors

TENSORS = {
    "b": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "step": torch.tensor(3.0),
    "empty": torch.empty(0, 4),
    "bytes": torch.arange(7, dtype=torch.uint8),
    "count": torch.tensor([2**40]),
}
NUMBERS = {
    "F64": torch.float64, "I64": torch.int64, "U64": torch.uint64, "F32": torch.float32, "I32": torch.int32, "U32": torch.uint32,
    "BF16": torch.bfloat16, "F16": torch.float16, "I16": torch.int16, "U16": torch.uint16, "I8": torch.int8, "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "BOOL": torch.bool,
}  # fmt: skip


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


def test_what_is_read_is_what_was_written_and_outlives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    save_file(TENSORS, path, {"base": "x"})
    read = read_tensors(path)
    path.unlink()
    assert set(read) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name], tensor)


def test_what_is_written_into_a_tensor_that_was_read_stays_here(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    save_file(TENSORS, path)
    read = read_tensors(path)
    read["b"].zero_()
    assert float(read["b"].sum()) == 0
    assert torch.equal(load_file(path)["b"], TENSORS["b"])


@pytest.mark.parametrize("code", sorted(NUMBERS))
def test_every_kind_of_numbers_comes_back(code: str, tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    tensor = torch.tensor([0, 1, 1, 0, 1]).to(NUMBERS[code])
    write_tensors({"x": Later.of(tensor)}, path)
    assert f'"dtype":"{code}"'.encode() in path.read_bytes()
    read = read_tensors(path)["x"]
    assert read.dtype == tensor.dtype
    assert read.view(torch.uint8).tolist() == load_file(path)["x"].view(torch.uint8).tolist()


def file_of(header: object, content: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def place(begin: int, end: int, shape: tuple[int, ...] = (4,), dtype: str = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\x08\0\0", "within its header"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "within its header"),
        (b"\x02\0\0\0\0\0\0\0{x", "Expecting"),
        (b"\x02\0\0\0\0\0\0\0\xff\xff", "decode"),
        (file_of([], b""), "valid dictionary"),
        (file_of({"a": {"dtype": "U8"}}, b""), "Field required"),
        (file_of({"a": place(0, 4, (-4,))}, b"1234"), "greater than or equal to 0"),
        (file_of({"a": place(0, 4, dtype="U3")}, b"1234"), "U3"),
        (file_of({"a": place(0, 4)}, b"123"), "4 bytes, it has 3"),
        (file_of({"a": place(0, 4)}, b"12345"), "4 bytes, it has 5"),
        (file_of({"a": place(1, 5)}, b"12345"), "from byte 1 to 5"),
        (file_of({"a": place(0, 3)}, b"123"), "from byte 0 to 3"),
        (file_of({"a": place(0, 4), "b": place(2, 6)}, b"123456"), "from byte 2 to 6"),
        (file_of({"a": place(0, 4, (1 << 62, 1 << 62))}, b"1234"), "from byte 0 to 4"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_tensors(path)
