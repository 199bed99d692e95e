"""Arguments of a tool as models send them: other names for a field, numbers as text, null, relative paths.

Only what has one meaning is accepted. An unknown argument is refused if the tool changes something, because it may ask
for another effect (`append` of a tool that replaces); a tool that only reads ignores it with a note.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, model_validator
from pydantic_core import from_json

from sandboxd.errors import OutsideSandbox
from sandboxd.models.paths import normalise_path, parse_path
from sandboxd.runner.inside.container_paths import NAMES_OF_ROOTS, WORKSPACE

_REMARKS = frozenset({"description", "explanation", "reason", "reasoning", "thought", "thoughts", "justification"})
"""Names under which models explain a call. Every tool accepts them, and none uses them."""
_BOOLEANS = {"true": True, "false": False}
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_MAX_INTEGER = 10**18
_MOST_ARGUMENTS = 100


def also(**names: str) -> dict[str, str]:
    """Return aliases: for each field, the other names that stand for it, separated by spaces."""
    return {name: field for field, others in names.items() for name in others.split()}


@dataclass(slots=True)
class ArgumentNotes:
    """How the arguments of one call are read, and which of them were ignored."""

    ignores_unknown: bool = False
    ignored: list[str] = field(default_factory=list)


class ToolArguments(BaseModel):
    """Arguments of a tool. `aliases` maps other names that models use to fields; `unused` names have no effect."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    aliases: ClassVar[Mapping[str, str]] = {}
    unused: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _forgive(cls, sent: Any, info: ValidationInfo) -> Any:
        if not isinstance(sent, Mapping):
            return sent
        if len(sent) > _MOST_ARGUMENTS:  # so that what is said about them stays small
            raise ValueError(f"there are {len(sent)} arguments; give only those that the tool takes")
        notes = info.context if isinstance(info.context, ArgumentNotes) else ArgumentNotes()
        types = _field_types(cls)
        values: dict[str, Any] = {}
        for key, value in sent.items():
            name = _field_of(cls, str(key).encode("utf-8", "replace").decode())
            if value is None or name is None:  # null means the same as leaving it out
                continue
            if name not in types:
                if notes.ignores_unknown:
                    notes.ignored.append(name)
                else:
                    values[name] = value  # refused below, as an extra field
                continue
            if isinstance(value, str) and not _is_unicode(value):
                raise ValueError(f"{name} contains half of a character (an unpaired surrogate); write the whole one")
            converted = _convert(value, types[name])
            if name in values and values[name] != converted:
                raise ValueError(f"{name} is given twice, with different values; give it once")
            values[name] = converted
        return values


def _is_unicode(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _field_of(model: type[ToolArguments], key: str) -> str | None:
    """Return the field that a name stands for; an unknown name unchanged; None for one without effect."""
    name = _known_names(model).get(key) or _folded_names(model).get(_fold(key))
    if name is None and (key in model.unused or key in _REMARKS):
        return None
    return name or key


@cache
def _known_names(model: type[ToolArguments]) -> dict[str, str]:
    return {**model.aliases, **{name: name for name in model.model_fields}}


@cache
def _folded_names(model: type[ToolArguments]) -> dict[str, str]:
    return {_fold(name): target for name, target in _known_names(model).items()}


def _fold(name: str) -> str:
    """Return a name without its case and separators: filePath, file-path and file_path are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _field_types(model: type[ToolArguments]) -> dict[str, frozenset[str]]:
    """Return the JSON types that each field accepts."""
    properties = model.model_json_schema()["properties"] if model.model_fields else {}
    return {name: frozenset(types_of(schema)) for name, schema in properties.items()}


def types_of(schema: Mapping[str, Any]) -> list[str]:
    if "anyOf" in schema:
        return [kind for option in schema["anyOf"] for kind in types_of(option)]
    return ["object"] if "$ref" in schema else [schema["type"]]


def _convert(value: Any, types: frozenset[str]) -> Any:
    """Return a value of another type as the one that it can only mean; any other value unchanged."""
    if isinstance(value, str):
        return _convert_text(value, types)
    if isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return int(value)
    if isinstance(value, int) and "integer" not in types:
        if "boolean" in types and value in (0, 1):
            return value == 1
        if "string" in types and abs(value) < _MAX_INTEGER:
            return str(value)
    return value


def _convert_text(text: str, types: frozenset[str]) -> Any:
    word = text.strip() if len(text) < 1000 or types & {"array", "object"} else text
    if "boolean" in types and word.lower() in _BOOLEANS:
        return _BOOLEANS[word.lower()]
    if "string" in types:
        return text
    if "integer" in types and _INTEGER.fullmatch(word):
        return int(word)
    if types & {"array", "object"} and word[:1] in ("[", "{"):
        try:
            return from_json(word)
        except ValueError:
            return text
    return text


def _from_workspace(text: str) -> str:
    """Return an absolute path: relative ones start at /workspace, which is also the agent's home."""
    if text == "~" or text.startswith("~/"):
        text = text[2:]
    return posixpath.join(WORKSPACE, text)


def _any_path(text: str) -> str:
    return normalise_path(_from_workspace(text))


def _path_in_roots(text: str) -> str:
    path = _any_path(text)
    try:
        return parse_path(path)
    except OutsideSandbox:
        # Quoted, because it is the model's text; as it was normalised, because that shows where `..` led.
        shown = path if len(path) <= 200 else f"{path[:200]}..."
        raise OutsideSandbox(
            f"cannot use {shown!r}: it is outside {NAMES_OF_ROOTS}; use a path under one of them, for example "
            f"{WORKSPACE}/notes.txt"
        ) from None


ReadablePath = Annotated[str, AfterValidator(_any_path)]
"""A path anywhere in the container: the runner decides whether it may be read."""
ToolPath = Annotated[str, AfterValidator(_path_in_roots)]
"""A path under one of the agent's directories."""
