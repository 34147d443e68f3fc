"""Reading data files: the same examples from every kind of file, and what is said about those that cannot be read."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bus.errors import ConfigError
from services.data.arrow import arrow_files
from services.data.complaints import Complaints
from services.data.examples import Example, examples
from services.data.files import digest_of, rows
from tests.services.data.folders import write_lines

ROOT = Path(__file__).resolve().parents[3]
ROWS: list[dict[str, object]] = [
    {"prompt": "1+1=", "answer": "2", "extra": {"gold": "two"}},
    {"prompt": "Grüße, 世界", "answer": "3", "extra": {"gold": "three"}},
    {"prompt": "a\nb", "answer": "4", "extra": {"gold": "four"}},
]
CHATS: list[dict[str, object]] = [
    {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": f"q{number}"}], "answer": number} for number in range(3)
]


def write_parquet(path: Path, table: Sequence[Mapping[str, object]]) -> str:
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(list(table)), path, row_group_size=2)
    return str(path)


def write_folder(folder: Path, table: Sequence[Mapping[str, object]]) -> str:
    """As `datasets` 4 writes it: two Arrow streams, and a state that names them in order."""
    pyarrow = importlib.import_module("pyarrow")
    folder.mkdir(parents=True)
    names = []
    for number, part in enumerate((table[:1], table[1:])):
        names.append(f"data-{number:05d}-of-00002.arrow")
        whole = pyarrow.Table.from_pylist(list(part))
        with (folder / names[-1]).open("wb") as file, pyarrow.ipc.new_stream(file, whole.schema) as writer:
            writer.write_table(whole, max_chunksize=1)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names], "_split": "train"}))
    (folder / "dataset_info.json").write_text("{}")
    return str(folder)


def read(*files: str, prompt: str = "prompt", answer: str = "answer") -> list[Example]:
    complaints = Complaints("data.train_files")
    found = [example for _, example in examples(complaints, files, prompt, answer)]
    complaints.raise_if_any()
    return found


def refusal(*files: str, prompt: str = "prompt", answer: str = "answer") -> str:
    with pytest.raises(ConfigError) as caught:
        read(*files, prompt=prompt, answer=answer)
    return str(caught.value)


@pytest.mark.parametrize("table", [ROWS, CHATS], ids=["text", "chat"])
def test_every_kind_of_file_gives_the_same_examples(tmp_path: Path, table: list[dict[str, object]]) -> None:
    lines = read(write_lines(tmp_path / "a.jsonl", table))
    assert lines == read(write_parquet(tmp_path / "a.parquet", table)) == read(write_folder(tmp_path / "a", table))
    assert [example.reference for example in lines] == [str(row["answer"]) for row in table]
    assert [list(example.prompt) if isinstance(example.prompt, tuple) else example.prompt for example in lines] == [
        row["prompt"] for row in table
    ]


def test_a_folder_that_datasets_itself_saved_gives_the_same_examples(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", ROWS)
    writing = f"""
from datasets import DatasetDict, load_dataset
whole = load_dataset("json", data_files={lines!r}, split="train", cache_dir={str(tmp_path / "cache")!r})
whole.save_to_disk({str(tmp_path / "saved")!r}, num_shards=2)
whole.select([2, 0]).save_to_disk({str(tmp_path / "selected")!r})
DatasetDict({{"train": whole}}).save_to_disk({str(tmp_path / "several")!r})
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", writing], env=environment, check=True, capture_output=True)
    assert read(str(tmp_path / "saved")) == read(str(tmp_path / "several" / "train")) == read(lines)
    assert [example.reference for example in read(str(tmp_path / "selected"))] == ["4", "2"]
    assert f"holds the sets train: name one of them, such as {tmp_path}/several/train" in refusal(str(tmp_path / "several"))


def test_files_are_read_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    first, second = write_lines(tmp_path / "b.jsonl", ROWS[:1]), write_parquet(tmp_path / "a.parquet", ROWS[1:])
    assert read(first, second) == read(write_lines(tmp_path / "c.jsonl", ROWS))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "folder"])
def test_a_dot_leads_into_a_column(tmp_path: Path, kind: str) -> None:
    write = {"jsonl": write_lines, "parquet": write_parquet, "folder": write_folder}[kind]
    file = write(tmp_path / ("a" if kind == "folder" else f"a.{kind}"), ROWS)
    assert [example.reference for example in read(file, answer="extra.gold")] == ["two", "three", "four"]
    assert "extra.silver is missing or null" in refusal(file, answer="extra.silver")


def test_a_column_whose_name_has_a_dot_goes_before_one_that_is_led_into(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"prompt": "p", "a.b": "this", "a": {"b": "that"}}])
    assert read(file, answer="a.b")[0].reference == "this"


@pytest.mark.parametrize(
    ("value", "text"), [("x", "x"), (7, "7"), (0.5, "0.5"), (["a", "ä"], '["a", "ä"]'), ({"gold": 1}, '{"gold": 1}'), (False, "false")]
)
def test_a_reference_that_is_no_text_becomes_json(tmp_path: Path, value: object, text: str) -> None:
    assert read(write_lines(tmp_path / "a.jsonl", [{"prompt": "p", "answer": value}]))[0].reference == text


def test_empty_lines_are_skipped_and_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\ufeff" + "\n\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    assert len(read(str(path))) == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "p", "answer" "a"}', "line 2: no JSON: Expecting ':' delimiter at column 26"),
        ('{"prompt": "p"', "line 2: no JSON: Expecting ',' delimiter at column 15"),
        ("[1, 2]", "line 2: holds a list, it must be an object with columns"),
        ("7", "line 2: holds a number"),
        ("null", "line 2: holds null"),
        ('{"prompt": "p", "gold": "a"}', "line 2: there is no column answer, only prompt, gold: name another one with data.answer_key"),
        ('{"answer": "a"}', "line 2: there is no column prompt, only answer: name another one with data.prompt_key"),
        ("{}", "line 2: there is no column prompt, only none at all"),
        ('{"prompt": "p", "answer": null}', "line 2: answer is missing or null"),
        ('{"prompt": " ", "answer": "a"}', "line 2: prompt is empty"),
        ('{"prompt": 7, "answer": "a"}', "line 2: prompt is 7, it must be text or a list of messages"),
        ('{"prompt": [], "answer": "a"}', "line 2: prompt is [], it must be text or a list of messages"),
        ('{"prompt": ["p"], "answer": "a"}', "line 2: prompt[0] is 'p', it must be a message with role and content, both text"),
        ('{"prompt": [{"role": "user"}], "answer": "a"}', "line 2: prompt[0] is {'role': 'user'}, it must be a message"),
        ('{"prompt": [{"role": "assistant", "content": "x"}], "answer": "a"}', "line 2: prompt ends with a message of the assistant"),
        ('{"prompt": "\\ud800", "answer": "a"}', "line 2: prompt has half a character at place 1"),
    ],
)
def test_a_line_that_is_no_example_is_told_with_number_and_reason(tmp_path: Path, line: str, words: str) -> None:
    file = write_lines(tmp_path / "a.jsonl", [ROWS[0], line, ROWS[1]])
    assert f"data.train_files: {file}, {words}" in refusal(file)


def test_bytes_that_are_no_utf_8_are_told_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9", "answer": "a"}\n')
    assert "line 1: byte 16 of the line is no UTF-8" in refusal(str(path))


def test_several_broken_lines_are_told_at_once_but_not_all_of_many(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", ["no", ROWS[0], "7", "no"])
    assert refusal(file).splitlines() == [
        f"data.train_files: {file}, line 1: no JSON: Expecting value at column 1 (also line 4)",
        f"data.train_files: {file}, line 3: holds a number, it must be an object with columns",
    ]
    words = refusal(write_lines(tmp_path / "b.jsonl", ["no"] * 100))
    assert "(also line 2, line 3, line 4, line 5)" in words
    assert words.endswith("there may be more: reading ended here")


@pytest.mark.parametrize("kind", ["parquet", "folder"])
def test_rows_of_other_files_are_told_by_number_and_a_missing_column_with_those_there_are(tmp_path: Path, kind: str) -> None:
    write = {"parquet": write_parquet, "folder": write_folder}[kind]
    file = write(tmp_path / ("a" if kind == "folder" else "a.parquet"), [*ROWS[:2], {"prompt": "p", "answer": None, "extra": None}])
    assert f"{file}, row 3: answer is missing or null" in refusal(file)
    assert f"{file}, row 1: there is no column question, only prompt, answer, extra: name" in refusal(file, prompt="question")


def test_an_empty_file_has_not_one_line(tmp_path: Path) -> None:
    for name, text in (("a.jsonl", ""), ("b.jsonl", "\n\n")):
        (tmp_path / name).write_text(text)
        assert refusal(str(tmp_path / name)) == f"data.train_files: {tmp_path / name}: there is not one line in it"
    assert "not one line" in refusal(write_parquet(tmp_path / "a.parquet", ROWS[:0]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.jsonl", "there is no {folder}/missing.jsonl: name a .jsonl file, a .parquet file, or a folder saved with save_to_disk"),
        ("a.csv", "a.csv has the suffix .csv, which is not known"),
        ("noname", "noname has the suffix (none), which is not known"),
        ("a.json", "JSON is read one object a line, from a.jsonl"),
        ("a.parquet", "a.parquet cannot be read as Parquet: "),
        ("folder", "folder is no data set saved with save_to_disk: state.json is missing or not as it should be"),
        ("several", "several holds the sets test, train: name one of them, such as {folder}/several/test"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_what_to_name(tmp_path: Path, name: str, words: str) -> None:
    for file in ("a.csv", "noname", "a.json", "a.parquet"):
        (tmp_path / file).write_text("prompt,answer\n")
    for folder in ("folder", "several/train", "several/test"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "several" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError) as caught:
        list(rows(str(tmp_path / name), ("prompt", "answer")))
    assert words.format(folder=tmp_path) in str(caught.value)


def test_a_torn_arrow_file_is_told_by_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", ROWS)
    part = arrow_files(Path(folder))[1]
    part.write_bytes(part.read_bytes()[:60])
    with pytest.raises(ConfigError, match=r"data-00001-of-00002.arrow cannot be read as a data set: "):
        list(rows(folder, ("prompt",)))


def test_without_pyarrow_its_extra_is_named_and_jsonl_is_read_all_the_same(tmp_path: Path) -> None:
    lines, table = write_lines(tmp_path / "a.jsonl", ROWS), write_parquet(tmp_path / "a.parquet", ROWS)
    probe = f"""
import sys
sys.modules["pyarrow"] = None
from bus.errors import ConfigError
from services.data.files import rows
assert len(list(rows({lines!r}, ("prompt",)))) == 3
try:
    list(rows({table!r}, ("prompt",)))
except ConfigError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"{table} is read by pyarrow, which is not installed: install the extra `data`, or write JSONL" in done.stderr


def test_a_digest_is_of_the_contents_and_their_order_not_of_names(tmp_path: Path) -> None:
    one, same = write_lines(tmp_path / "a.jsonl", ROWS[:1]), write_lines(tmp_path / "b.jsonl", ROWS[:1])
    other = write_lines(tmp_path / "c.jsonl", ROWS[1:])
    assert digest_of([one]) == digest_of([same]) != digest_of([other])
    assert digest_of([one, other]) != digest_of([other, one])
    folder = write_folder(tmp_path / "d", ROWS)
    before = digest_of([folder])
    arrow_files(Path(folder))[1].write_bytes(b"changed")
    assert digest_of([folder]) != before
