"""The tokenizer of a model folder, by the library `tokenizers` alone: reward workers, too, have one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from bus.errors import ConfigError
from services.data.model_folder import TOKENIZER


class TextTokenizer:
    """Text to token ids and back. Raises ConfigError for a folder without a tokenizer."""

    def __init__(self, folder: Path) -> None:
        file = folder / TOKENIZER
        if not file.is_file():
            raise ConfigError(
                f"there is no {file}: data from files needs the tokenizer in this form; "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes it"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing more special
            raise ConfigError(f"{file} cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def num_ids(self) -> int:
        """The highest token id and one."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def id_of(self, token: str) -> int | None:
        """The id of a token as it stands in the vocabulary."""
        return self._tokenizer.token_to_id(token)

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[tuple[int, ...]]:
        """The ids of each text, with the tokenizer's own begin and end tokens or without."""
        return [tuple(found.ids) for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of some ids; ids that stand for nothing are left out."""
        return self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)
