"""The chain finds every change; the codec gives back what it got, and says what it cannot read. Also: what must be in no source file."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path

import msgpack
import pytest
from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from bus import chain, codec
from bus.codec import MAX_BYTES, decode, encode
from bus.entry import Draft, Entry
from bus.errors import CodecError, EntryTooLarge
from bus.events import KINDS, BlobRef, GenerationFinished, ServiceStarted, StepDone, WaitSamples
from tests.bus.examples import example_of
from tests.bus.factories import fact, plan, wait_samples

ROOT = Path(__file__).parents[2]
OWN = ("bus", "services", "policies", "replay", "benchmarks", "tests")

LINK: dict[str, object] = {
    "previous": "ab" * 20, "position": 7, "kind": "StepDone", "version": 1, "source": "trainer", "epoch": 2, "derived": False, "cause": 5,
    "at": 1_700_000_000_123_456_789, "body": b"\x80",
}  # fmt: skip


def link(**changed: object) -> str:
    """The chain of an entry that differs in these fields."""
    return chain.link(**(LINK | changed))  # type: ignore[arg-type]


def test_the_chain_is_the_digest_that_the_append_script_computes() -> None:
    text = "ab" * 20 + "\n7\nStepDone\n1\ntrainer\n2\n0\n5\n1700000000123456789\n\x80"
    assert link() == sha1(text.encode("latin-1")).hexdigest()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous", "ab" * 19 + "ac"), ("previous", chain.GENESIS), ("position", 8), ("kind", "StepDon"), ("version", 2),
        ("source", "train"), ("epoch", 1), ("derived", True), ("cause", 4), ("at", 1_700_000_000_123_456_788), ("body", b"\x81"),
        ("body", b""),
    ],
)  # fmt: skip
def test_a_change_of_any_field_changes_the_chain(field: str, value: object) -> None:
    assert link(**{field: value}) != link()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_event_comes_back_as_it_was(kind: str) -> None:
    event = example_of(KINDS[kind])
    assert event.kind == kind
    back = decode(kind, event.schema_version, encode(event))
    assert back == event
    assert type(back) is type(event)
    assert encode(back) == encode(event)


def test_numbers_that_json_does_not_have_come_back() -> None:
    event = StepDone(
        step=1, version=0, is_boundary=True, num_samples=8, seconds={"train": float("inf")}, metrics={"loss": float("-inf"), "zero": -0.0}
    )
    back = decode("StepDone", 1, encode(event))
    assert back == event
    assert repr(back) == repr(event)


def test_a_body_of_the_largest_size_passes_and_one_byte_more_does_not() -> None:
    overhead = len(encode(ServiceStarted(code="x" * (MAX_BYTES - 1000)))) - (MAX_BYTES - 1000)
    assert len(encode(ServiceStarted(code="x" * (MAX_BYTES - overhead)))) == MAX_BYTES
    with pytest.raises(EntryTooLarge, match=f"ServiceStarted has a body of {MAX_BYTES + 1} bytes, the limit is {MAX_BYTES}"):
        encode(ServiceStarted(code="x" * (MAX_BYTES - overhead + 1)))


def test_an_unknown_kind_is_an_error_that_names_it() -> None:
    with pytest.raises(CodecError, match="unknown kind 'Nothing'"):
        decode("Nothing", 1, b"\x80")


def test_a_newer_schema_is_an_error_that_says_what_can_be_read() -> None:
    with pytest.raises(CodecError, match="WaitSamples has schema 2, this version of swingshift reads up to 1"):
        decode("WaitSamples", 2, encode(wait_samples(1)))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xc1", b"\x80\x80", encode(wait_samples(1))[:-1], msgpack.packb(3), msgpack.packb([1, 2, 3]),
        msgpack.packb({"step": 1, "need": 8}), msgpack.packb({"step": 1, "need": 8, "have": 1, "more": 0}),
        msgpack.packb({"step": "one", "need": 8, "have": 1}), msgpack.packb({1: 2}), b"\xd9\xff",
    ],
)  # fmt: skip
def test_a_broken_body_is_a_codec_error_and_nothing_else(body: bytes) -> None:
    with pytest.raises(CodecError, match=r"the body of a WaitSamples \(schema 1, \d+ bytes\) cannot be read"):
        decode("WaitSamples", 1, body)


def test_older_schemas_are_brought_up_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitSamples, "schema_version", 3)
    monkeypatch.setitem(codec.UPCASTERS, ("WaitSamples", 1), lambda body: {**body, "need": body["needed"] * 2, "ready": body["ready"]})
    monkeypatch.setitem(
        codec.UPCASTERS, ("WaitSamples", 2), lambda body: {"step": body["step"], "need": body["need"], "have": body["ready"]}
    )
    first = msgpack.packb({"step": 1, "needed": 4, "ready": 3})
    second = msgpack.packb({"step": 1, "need": 8, "ready": 3})
    assert decode("WaitSamples", 1, first) == decode("WaitSamples", 2, second) == wait_samples(3)
    assert decode("WaitSamples", 3, encode(wait_samples(3))) == wait_samples(3)


def test_every_step_between_schema_versions_has_its_upcaster() -> None:
    for kind, model in KINDS.items():
        assert all((kind, version) in codec.UPCASTERS for version in range(1, model.schema_version))


def test_events_are_frozen_and_take_no_unknown_field() -> None:
    event = wait_samples(1)
    with pytest.raises(ValidationError):
        event.have = 2  # type: ignore[misc]
    with pytest.raises(ValidationError, match="typo"):
        WaitSamples.model_validate({"step": 1, "need": 8, "have": 1, "typo": 0})


def test_events_with_events_inside_come_back() -> None:
    event = GenerationFinished(
        request="1.0", attempt=1, replica="a0", outcome="stop", num_tokens=3, version_spans=((0, 1), (1, 2)),
        blob=BlobRef(name="n", num_bytes=3, digest="d"),
    )  # fmt: skip
    assert decode("GenerationFinished", 1, encode(event)) == event
    assert decode("RunPlanned", 1, encode(plan("r"))) == plan("r")


def test_c_46_no_time_stamp_is_a_default() -> None:
    """A default is computed once, at import: then every event has the import's time."""
    assert Entry._field_defaults == {}
    assert all(field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING for field in dataclasses.fields(Draft))
    for kind, model in KINDS.items():
        for name, field in model.model_fields.items():
            assert field.default_factory in (None, dict), (kind, name)
            looks_like_a_time = type(field.default) in (int, float) and field.default > 1e8
            assert field.default is PydanticUndefined or not looks_like_a_time, (kind, name)


def test_c_46_two_entries_have_the_times_they_were_given() -> None:
    first, second = fact(wait_samples(1), at=10), fact(wait_samples(1), at=11)
    assert (first.at, second.at) == (10, 11)


FORBIDDEN_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {("torch", "save"), ("torch", "load"), ("pd", "read_pickle"), ("pandas", "read_pickle")}


def source_files() -> list[Path]:
    return [ROOT / "swingshift.py", *(path for folder in OWN for path in sorted((ROOT / folder).rglob("*.py")))]


def pickles(source: str) -> Iterator[str]:
    """Each use of something that (un)pickles, as `line: what`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"{node.lineno}: {alias.name}" for alias in node.names if alias.name.partition(".")[0] in FORBIDDEN_MODULES)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FORBIDDEN_MODULES:
            yield f"{node.lineno}: {node.module}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in FORBIDDEN_CALLS:
            yield f"{node.lineno}: {node.value.id}.{node.attr}"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield f"{node.value.lineno}: allow_pickle"


def test_c_49_there_is_no_pickle_in_any_source_file() -> None:
    found = [f"{path.relative_to(ROOT)}:{use}" for path in source_files() if path.exists() for use in pickles(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "line",
    ["import pickle", "import os, pickle as p", "from pickle import loads", "import joblib.numpy_pickle", "torch.save(model, path)",
     "x = torch.load(path)", "np.load(path, allow_pickle=True)"],
)  # fmt: skip
def test_c_49_a_pickle_would_be_found(line: str) -> None:
    assert len(list(pickles(line))) == 1
