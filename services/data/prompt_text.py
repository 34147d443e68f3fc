"""How prompts become tokens: chat template and tokenizer of one model folder, and whether both fit the model.

Their libraries are loaded once there is such a folder: every service and most commands import this module, and few have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bus.errors import ConfigError
from services.config import DataConfig
from services.data.examples import Example, Message
from services.data.model_folder import TOKENIZER_CONFIG, ModelFolder, read_json


class PromptText:
    """The text and the tokens of examples. Raises ConfigError for a folder without a tokenizer."""

    def __init__(self, folder: Path, data: DataConfig) -> None:
        from services.data.chat import read_chat_template
        from services.data.tokenizer import TextTokenizer

        self._tokenizer = TextTokenizer(folder)
        self._template = read_chat_template(folder, data.apply_chat_template_kwargs)
        self._always_chat = data.apply_chat_template == "always"
        self._folder = folder

    def rendered(self, example: Example) -> tuple[str, bool]:
        """The prompt's text, and whether a chat template made it, which then has written the begin token.

        Raises ConfigError for a conversation without a template, ValueError for one that the template refuses.
        """
        if isinstance(example.prompt, str) and not self._always_chat:
            return example.prompt, False
        messages: Sequence[Message] = [{"role": "user", "content": example.prompt}] if isinstance(example.prompt, str) else example.prompt
        if self._template is None:
            raise ConfigError(
                f"the prompt is a conversation, and the tokenizer of {self._folder} has no chat template: "
                "take an instruct model, put a chat_template.jinja into the folder, or write prompts as text"
            )
        return self._template.render(messages), True

    def tokens(self, rendered: Sequence[tuple[str, bool]]) -> list[tuple[int, ...]]:
        """The tokens of each; those that were texts begin with the tokenizer's own begin token, if it has one."""
        found: dict[int, tuple[int, ...]] = {}
        for chat in (False, True):
            places = [place for place, (_, is_chat) in enumerate(rendered) if is_chat == chat]
            encoded = self._tokenizer.encode([rendered[place][0] for place in places], add_special_tokens=not chat)
            found.update(zip(places, encoded, strict=True))
        return [found[place] for place in range(len(rendered))]

    def stop_token_ids(self, model: ModelFolder) -> tuple[int, ...]:
        """Tokens that end an answer: those of the model's generation settings, and the tokenizer's end token. Raises ConfigError."""
        from services.data.chat import special_tokens

        file = self._folder / TOKENIZER_CONFIG
        token = special_tokens(read_json(file)).get("eos_token") if file.is_file() else None
        of_tokenizer = None if token is None else self._tokenizer.id_of(token)
        found = dict.fromkeys([*model.eos_token_ids, *([] if of_tokenizer is None else [of_tokenizer])])
        if not found:
            raise ConfigError(
                f"neither the model in {model.path} nor its tokenizer names a token that ends an answer (eos_token, eos_token_id): "
                "set rollout.stop_token_ids"
            )
        return tuple(found)

    def check_fit(self, model: ModelFolder) -> None:
        """Raises ConfigError when the tokenizer has ids for which the model has no embedding."""
        if model.vocab_size is not None and self._tokenizer.num_ids > model.vocab_size:
            raise ConfigError(
                f"the tokenizer in {model.path} has token ids up to {self._tokenizer.num_ids - 1}, the model's embeddings have "
                f"{model.vocab_size} rows: it is another model's tokenizer, or the model was not resized for it"
            )
