"""The 27 callbacks and the executor: their names and parameters, and a no-op set to build others on.

An invalid callback is rejected when the runner is constructed. Only parameters without a default count, and for a
wrapper its own signature counts, not that of the wrapped function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from memo.spool import InMemorySpool, MediaReader, SpoolBytes, SpoolReader

Callback = Callable[..., Any]
Callbacks = Mapping[str, Callback]

Noun = Literal["message", "memory", "thought", "tool_call", "retrievable", "standing_instruction"]
Verb = Literal["store", "mutate", "delete"]

NOUNS: Final[tuple[Noun, ...]] = ("message", "memory", "thought", "tool_call", "retrievable", "standing_instruction")
VERBS: Final[tuple[Verb, ...]] = ("store", "mutate", "delete")

FETCH_CALLBACKS: Final = (
    "fetch_memories_callback",
    "fetch_messages_callback",
    "fetch_thoughts_callback",
    "fetch_tool_calls_callback",
    "fetch_tools_callback",
    "fetch_retrievables_callback",
    "refresh_standing_instructions_callback",
)
CHANGE_CALLBACKS: Final = tuple(f"{verb}_{noun}_callback" for noun in NOUNS for verb in VERBS)
BYTES_CALLBACKS: Final = ("store_media_bytes_callback", "store_retrievable_bytes_callback")
EXECUTOR_CALLBACK: Final = "executor_callback"

PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(FETCH_CALLBACKS, ("ctx",)),
    **dict.fromkeys(CHANGE_CALLBACKS, ("ctx", "value")),
    **dict.fromkeys(BYTES_CALLBACKS, ("ctx", "id", "bytes")),
}
"""The parameters of each of the 27 callbacks."""


def problems_of(callbacks: Mapping[str, object]) -> list[str]:
    """Return every problem with the callbacks and the executor."""
    wanted = {EXECUTOR_CALLBACK: ("ctx", "helpers"), **PARAMETERS}
    found = [problem for name, parameters in wanted.items() if (problem := _problem(callbacks, name, parameters))]
    return found + [f"{name} is not a callback" for name in callbacks if name not in wanted]


def _problem(callbacks: Mapping[str, object], name: str, parameters: tuple[str, ...]) -> str | None:
    if callbacks.get(name) is None:
        return f"{name} is missing"
    return problem_of_parameters(name, callbacks[name], parameters)


def problem_of_parameters(name: str, callback: object, parameters: tuple[str, ...]) -> str | None:
    """Return why a callable cannot take these parameters, or None if it can."""
    if not callable(callback):
        return f"{name} is not callable"
    count = parameter_count(callback)
    if count == len(parameters):
        return None
    has = "an unknown number of parameters" if count is None else f"{count} parameter{'' if count == 1 else 's'}"
    return f"{name} has {has} and must have {len(parameters)}: ({', '.join(parameters)})"


def parameter_count(callback: Callback) -> int | None:
    """Count the required positional parameters; None if the signature is unknown or has required keywords."""
    try:
        signature = inspect.signature(callback, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    count = 0
    for parameter in signature.parameters.values():
        if parameter.default is not parameter.empty:
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            count += 1
        elif parameter.kind is parameter.KEYWORD_ONLY:
            return None
    return count


async def call(callback: Callback, *args: Any) -> Any:
    """Call a sync or async callback and return its result."""
    result = callback(*args)
    return await result if inspect.isawaitable(result) else result


async def _fetch_nothing(ctx: Any) -> list[Any]:
    return []


async def _change_nothing(ctx: Any, value: Any) -> None:
    return None


def noop_callbacks() -> dict[str, Any]:
    """Return 27 callbacks that store nothing, except that bytes stay in memory, because they must be readable."""
    media, retrievables = InMemorySpool(), InMemorySpool()

    async def store_media_bytes(ctx: Any, id: str, data: SpoolBytes) -> MediaReader:
        return await media.write(id, data)

    async def store_retrievable_bytes(ctx: Any, id: str, data: SpoolBytes) -> SpoolReader:
        return await retrievables.write(id, data)

    return {
        **dict.fromkeys(FETCH_CALLBACKS, _fetch_nothing),
        **dict.fromkeys(CHANGE_CALLBACKS, _change_nothing),
        "store_media_bytes_callback": store_media_bytes,
        "store_retrievable_bytes_callback": store_retrievable_bytes,
    }
