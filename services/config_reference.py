"""The reference of all settings, made from the models themselves: `python -m services.config_reference > docs/settings.md`.

A test compares the page with the models, so neither can change without the other.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from typing import Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from services.config import FROM_OTHER_SECTIONS, RunConfig

HEAD = """# Settings

Every setting of a run, section by section: its default, what it may be, and what it means. This page is made from the models by
`python -m services.config_reference`; [configuration.md](configuration.md) says how to set them.
"""


def reference() -> str:
    """The page, in Markdown."""
    sections = [HEAD, *_section("", "", RunConfig)]
    return "\n".join(sections).rstrip() + "\n"


def names(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Every setting's full name, `section.name`."""
    for name, field in model.model_fields.items():
        inner = _model_of(field)
        if inner is None:
            yield prefix + name
        else:
            yield prefix + name
            yield from names(inner, f"{prefix}{name}.")


def _section(prefix: str, title: str, model: type[BaseModel]) -> Iterator[str]:
    meanings = _meanings(model)
    plain = {name: field for name, field in model.model_fields.items() if _model_of(field) is None}
    if prefix:
        yield f"\n## {title}\n"
        yield f"{_first_paragraph(model)}\n"
    if plain:
        yield "| setting | default | may be | meaning |"
        yield "|---|---|---|---|"
    for name, field in plain.items():
        if prefix == "actor." and name in FROM_OTHER_SECTIONS:
            continue
        cells = (f"`{prefix}{name}`", _default(field), _may_be(field), meanings.get(name, ""))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    for name, field in model.model_fields.items():
        inner = _model_of(field)
        if inner is not None:
            yield from _section(f"{prefix}{name}.", f"{prefix}{name}", inner)


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _first_paragraph(model: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(model) or "").partition("\n\n")[0].split())


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """Setting -> the docstring that stands below it in the source."""
    found: dict[str, str] = {}
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)
    for statement, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and isinstance(below, ast.Expr):
            text = below.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = " ".join(text.value.split())
    return found


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "needed"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{value}`" if value != "" else "empty"


def _may_be(field: FieldInfo) -> str:
    limits = [_limit(item) for item in field.metadata]
    return ", ".join([_kind(field.annotation), *(limit for limit in limits if limit)])


def _limit(item: object) -> str:
    match item:
        case Ge(ge=value):
            return f"at least {value}"
        case Gt(gt=value):
            return f"above {value}"
        case Le(le=value):
            return f"at most {value}"
        case Lt(lt=value):
            return f"below {value}"
        case _:
            return ""


def _kind(annotation: object) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    if origin is Union or type(annotation).__name__ == "UnionType":
        return " or ".join(dict.fromkeys(_kind(argument) for argument in arguments if argument is not type(None)))
    if origin in (tuple, list):
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return "map"
    if type(annotation).__name__ == "_AnnotatedAlias":
        return _kind(arguments[0])
    words = {"str": "text", "int": "integer", "float": "number", "bool": "`true`, `false`", "Path": "path"}
    return words.get(getattr(annotation, "__name__", ""), str(annotation))


if __name__ == "__main__":
    sys.stdout.write(reference())
