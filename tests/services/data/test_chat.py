"""Chat templates: the same text as from the library whose templates they are, and what is said about those that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from bus.errors import ConfigError
from services.config import DataConfig
from services.data.chat import ChatTemplate, read_chat_template
from services.data.examples import Example
from services.data.prompt_text import PromptText
from tests.services.data.folders import TEMPLATE, make_folder

CHAT = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": "Was ist 1+1?\n  Go."},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "世界"},
]
CHATML = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if loop.index0 == 0 and message.role == 'system' %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
OTHERS = [
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] | upper }}] {{ m['content'] | trim }}{{ eos_token }}{% endfor %}",
    "{% for m in messages %}\n    {% if m.role == 'user' %}\n    U: {{ m.content }}\n    {% endif %}\n{% endfor %}\nA:",
    "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}",
    "{% if tools %}T{% endif %}{% if documents is none %}D{% endif %}{% for m in messages %}{% break %}{% endfor %}",
    "{% macro say(m) %}<{{ m.role }}>{{ m.content.split('?')[0] }}{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
]


@pytest.mark.parametrize("template", [TEMPLATE, CHATML, *OTHERS])
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}], ids=["plain", "not thinking"])
def test_a_conversation_becomes_the_text_that_transformers_makes_of_it(tmp_path: Path, template: str, variables: dict[str, object]) -> None:
    folder = make_folder(tmp_path, template)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    ours = read_chat_template(folder, variables)
    assert ours is not None
    assert ours.render(CHAT) == theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True, **variables)


def test_texts_and_conversations_become_the_tokens_that_transformers_makes_of_them(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    ours = PromptText(folder, DataConfig.model_validate({"reward": "exact"}))
    texts = ["1+1=", "Grüße, 世界 🙂", "<|end|> is a token", " "]
    chats = [CHAT, [{"role": "user", "content": "hi"}]]
    examples = [
        example for text, chat in zip(texts, [*chats, *chats], strict=True) for example in (Example(text, ""), Example(tuple(chat), ""))
    ]
    tokens = ours.tokens([ours.rendered(example) for example in examples])
    assert tokens[::2] == [tuple(theirs(text)["input_ids"]) for text in texts]
    assert tokens[1::2] == 2 * [
        tuple(theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]) for chat in chats
    ]


def test_a_template_may_be_in_the_tokenizers_settings_alone_or_by_name(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, None)
    assert read_chat_template(folder, {}) is None
    for template in ("one", [{"name": "tool_use", "template": "two"}, {"name": "default", "template": "one"}]):
        settings = {"chat_template": template, "eos_token": {"content": "<|end|>", "special": True}}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        found = read_chat_template(folder, {})
        assert found is not None
        assert found.render(CHAT) == "one"


def test_special_tokens_may_be_told_with_their_details(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "{{ eos_token }}")
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|end|>", "lstrip": false}, "unk_token": null}')
    found = read_chat_template(folder, {})
    assert found is not None
    assert found.render(CHAT) == "<|end|>"


def test_a_templates_clock_stands_still_and_is_not_there_for_one_that_can_do_without() -> None:
    assert ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, {}, "here").render(CHAT) == "01 Jan 2026"
    source = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul 2024{% endif %}"
    assert ChatTemplate(source, {}, {}, "here").render(CHAT) == "26 Jul 2024"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "the chat template in here refuses the messages: roles must alternate"),
        ("{{ nobody() }}", "refuses the messages: 'nobody' is undefined"),
        ("{{ messages[9].content.upper() }}", "refuses the messages: "),
        ("{{ 1 + 'a' }}", "refuses the messages: unsupported operand"),
        ("{{ messages.append(1) }}", "refuses the messages: access to attribute 'append' of 'list' object is unsafe"),
    ],
)
def test_a_template_that_refuses_says_why(source: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ChatTemplate(source, {}, {}, "here").render(CHAT)


def test_what_is_no_template_is_told_by_its_file(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "{% for m in messages %}")
    with pytest.raises(ConfigError, match=r"the chat template in .*chat_template\.jinja cannot be read: "):
        read_chat_template(folder, {})
