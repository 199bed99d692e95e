"""Write docs/settings.md: every setting with its variable, TOML key, default, bounds and description.

The text comes from the settings model, field by field, so the page cannot disagree with the daemon.
Usage: `.venv/bin/python -m scripts.settings_reference`; tests/unit/test_settings_reference.py fails when it is stale.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sandboxd.settings import Settings
from sandboxd.settings_sources import PREFIX

TARGET = Path(__file__).parents[1] / "docs" / "settings.md"
HIDDEN = frozenset({"failpoint"})
"""Settings for tests only."""
_COMPUTED = {"data": "`/var/lib/sandboxd` as root", "socket": "`/run/sandboxd.sock` as root"}
"""Defaults that depend on the user that starts the daemon."""
_BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_HEAD = """\
# Settings

Written by `scripts/settings_reference.py` from the settings model; do not edit it by hand.

A value comes from the command line (`sandboxd serve --pool 4`), else from the variable, else from a file; otherwise it
is the default. The files are `/etc/sandboxd/sandboxd.toml`, `~/.config/sandboxd/sandboxd.toml` and `sandboxd.toml` in
the working directory, where a later file takes precedence, or only the file that `SANDBOXD_CONFIG` names. A TOML key
with a dot is a key in a table: `limits.memory_mb` is `memory_mb` under `[limits]`. A name that is not a setting is
refused.
"""


def render() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_table(Settings, ""), *_tables(Settings)]) + "\n"


def _tables(model: type[BaseModel]) -> Iterator[str]:
    described = describe_fields(model)
    for name, field in model.model_fields.items():
        if (table := _model_of(field)) is not None:
            yield f"\n## `[{name}]`\n\n{described[name]}\n"
            yield from _table(table, f"{name}.")


def _table(model: type[BaseModel], prefix: str) -> Iterator[str]:
    described = describe_fields(model)
    yield "| TOML key | variable | default | description |"
    yield "| --- | --- | --- | --- |"
    for name, field in model.model_fields.items():
        if name in HIDDEN or _model_of(field) is not None:
            continue
        key = prefix + name
        variable = PREFIX + key.replace(".", "__").upper()
        text = " ".join(filter(None, [described[name], _bounds(field)])).replace("|", "\\|")
        yield f"| `{key}` | `{variable}` | {_COMPUTED.get(name) or _default(field)} | {text} |"


def describe_fields(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each field of a model, on one line; empty for a field without one."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101  # the source of a class
    found = dict.fromkeys(model.model_fields, "")
    for statement, following in zip(body.body, body.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is None or value in ("", ()):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _bounds(field: FieldInfo) -> str:
    if choices := _choices(field.annotation):
        return f"One of {', '.join(f'`{choice}`' for choice in choices)}."
    bounds = [
        f"{sign} {getattr(limit, name):,}"
        for limit in field.metadata
        for name, sign in _BOUNDS.items()
        if getattr(limit, name, None) is not None
    ]
    return f"({', '.join(bounds)})" if bounds else ""


def _choices(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
