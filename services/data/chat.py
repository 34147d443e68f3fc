"""Chat templates: a conversation becomes the text that a model was trained on, as Hugging Face's tokenizers do it.

A template is Jinja in a sandbox, with what such templates may use: `messages`, `add_generation_prompt`, the special tokens by name,
`raise_exception`, `tojson`, loop controls, and blocks `generation`, which mark the assistant's words and add nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from jinja2 import Template, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bus.errors import ConfigError
from services.data.examples import Message
from services.data.model_folder import TEMPLATE, TOKENIZER_CONFIG, read_json

TODAY = date(2026, 1, 1)
"""What a template's clock shows that insists on one: a prompt must be the same today and after tomorrow's restart."""


class ChatTemplate:
    """One template. `special_tokens`: name -> token. Raises ConfigError when it is no template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], variables: Mapping[str, object], where: str) -> None:
        self._where = where
        self._variables = {"tools": None, "documents": None, **special_tokens, **variables}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        if "strftime_now is defined" not in source:
            environment.globals["strftime_now"] = TODAY.strftime
        try:
            self._template: Template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigError(f"the chat template in {where} cannot be read: {error}") from error

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation as text that ends where the answer begins. Raises ValueError when the template refuses it."""
        try:
            return self._template.render(messages=[dict(message) for message in messages], add_generation_prompt=True, **self._variables)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise ValueError(f"the chat template in {self._where} refuses the messages: {error}") from error


def read_chat_template(folder: Path, variables: Mapping[str, object]) -> ChatTemplate | None:
    """The template in a model's folder, None when it has none. `variables`: further ones. Raises ConfigError."""
    settings = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    if (folder / TEMPLATE).is_file():
        source: str | None = (folder / TEMPLATE).read_text(encoding="utf-8")
        where = folder / TEMPLATE
    else:
        source, where = _chosen(settings.get("chat_template")), folder / TOKENIZER_CONFIG
    return None if source is None else ChatTemplate(source, special_tokens(settings), variables, str(where))


def special_tokens(settings: Mapping[str, object]) -> dict[str, str]:
    """The special tokens that a tokenizer's settings name, such as `eos_token`."""
    found = {name: _content(value) for name, value in settings.items() if name.endswith("_token")}
    return {name: token for name, token in found.items() if token is not None}


def _content(value: object) -> str | None:
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else None


def _chosen(value: object) -> str | None:
    """The template, or of several that have names the one called `default`."""
    if isinstance(value, list):
        named = {entry["name"]: entry["template"] for entry in value if isinstance(entry, dict) and {"name", "template"} <= set(entry)}
        value = named.get("default")
    return value if isinstance(value, str) else None


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: what stands in it, as if it stood there alone."""

    tags = {"generation"}  # noqa: RUF012 - as in the base class

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
