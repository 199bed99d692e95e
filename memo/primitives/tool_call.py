"""ToolCall: one finished tool call, with its arguments and its results: text, artifacts or media.

The caller computes the checksum, which identifies equal calls; it is verified here.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, StrictBool, Tag

from memo.primitives.errors import InvalidPrimitive, InvalidToolCall
from memo.primitives.media import Media
from memo.primitives.primitive import Label, Primitive, PrimitiveId
from memo.primitives.readers import ArtifactField, is_artifact
from memo.primitives.tokenizable import Tokenizable
from memo.primitives.when import When
from memo.spool import SpooledArtifact

# Producers agree on sorted keys and differ in whitespace and in escaping non-ASCII. All four forms are canonical: each
# gives equal calls an equal text.
_SPELLINGS: tuple[tuple[tuple[str, str], bool], ...] = (
    ((",", ":"), False),
    ((",", ":"), True),
    ((", ", ": "), False),
    ((", ", ": "), True),
)


def tool_call_checksum(tool: str, args: Mapping[str, Any]) -> str:
    """Return the sha256 of the tool's name and its arguments as compact JSON with sorted keys, in UTF-8."""
    return _checksum(tool, args, *_SPELLINGS[0])


def _checksum(tool: str, args: Mapping[str, Any], separators: tuple[str, str], ascii_only: bool) -> str:
    text = json.dumps(args, sort_keys=True, separators=separators, ensure_ascii=ascii_only, allow_nan=False)
    return hashlib.sha256((tool + text).encode("utf-8", "surrogatepass")).hexdigest()


def _parse_args(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError("args are a string that is not valid JSON") from None
    if not isinstance(value, Mapping):
        raise ValueError("args must be a JSON object, or a string that holds one")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("args contain a value that JSON cannot hold") from None
    return copy.deepcopy(dict(value))  # a copy: the caller may keep changing its own dict


def _silo(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "artifacts" if value and all(is_artifact(item) for item in value) else "media list"
    if is_artifact(value):
        return "artifact"
    return "media" if isinstance(value, Media | dict) else "text"


Results = Annotated[
    Annotated[Tokenizable, Tag("text")]
    | Annotated[ArtifactField, Tag("artifact")]
    | Annotated[tuple[ArtifactField, ...], Tag("artifacts")]
    | Annotated[Media, Tag("media")]
    | Annotated[tuple[Media, ...], Tag("media list")],
    Discriminator(_silo),
]


class ToolCall(Primitive):
    refusal: ClassVar[type[InvalidPrimitive]] = InvalidToolCall

    id: PrimitiveId
    tool: Label
    args: Annotated[dict[str, Any], BeforeValidator(_parse_args)]
    results: Results
    inline: StrictBool = True
    is_complete: Literal[True] = True
    is_error: StrictBool
    checksum: Label
    from_artifact_tool: StrictBool = False
    created_at: When
    updated_at: When
    completed_at: When

    def _problems(self) -> Iterator[str]:
        if self.checksum not in {_checksum(self.tool, self.args, *spelling) for spelling in _SPELLINGS}:
            yield "the checksum is not the sha256 of this tool and these args; use tool_call_checksum"
        if isinstance(self.results, tuple) and not self.results:
            yield "results must not be an empty list"
        if self.from_artifact_tool and not isinstance(self.results, Tokenizable):
            # Otherwise an artifact tool could be called on its own results without end.
            yield "the result of an artifact tool must be text"

    @property
    def artifacts(self) -> tuple[SpooledArtifact, ...]:
        """Return the results that are artifacts."""
        return tuple(r for r in self._each_result() if isinstance(r, SpooledArtifact))

    @property
    def media(self) -> tuple[Media, ...]:
        """Return the results that are media."""
        return tuple(r for r in self._each_result() if isinstance(r, Media))

    def __hash__(self) -> int:
        return hash(self.id)  # a dict of args is not hashable

    def _each_result(self) -> tuple[Any, ...]:
        return self.results if isinstance(self.results, tuple) else (self.results,)
