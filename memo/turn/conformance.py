"""`check_callbacks`: the conformance check for a set of 27 callbacks. A failure names the broken promise.

It runs real turns through the callbacks, so it sees what an agent would see. Callbacks that store nothing by design
pass with `remembers=False`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from memo.conformance import BrokenPromise, Factory, made
from memo.primitives import (
    Identity,
    Media,
    Memory,
    Message,
    Retrievable,
    Thought,
    Tokenizable,
    ToolCall,
    tool_call_checksum,
)
from memo.spool import BytesReader, SpooledArtifact
from memo.turn.callbacks import NOUNS, Noun, problems_of
from memo.turn.context import Context, DispatchContext
from memo.turn.delta import name_of
from memo.turn.reporter import Reporter
from memo.turn.runner import TurnRunner

_AT = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
_FETCH: dict[Noun, str] = {
    "message": "fetch_messages",
    "memory": "fetch_memories",
    "thought": "fetch_thoughts",
    "tool_call": "fetch_tool_calls",
    "retrievable": "fetch_retrievables",
    "standing_instruction": "refresh_standing_instructions",
}


async def check_callbacks(make: Factory, *, remembers: bool = True, upsert: bool = False) -> None:
    """Raise BrokenPromise, an AssertionError that names the promise.

    `make` returns callbacks for an empty store: the mapping, an awaitable of it, or an async context manager. With
    `upsert`, a mutation of something that was never stored may store it, instead of ending the turn with an error.
    """
    checks: list[Callable[[dict[str, Any]], Awaitable[None]]] = [_check_parameters, _check_bytes]
    checks += [partial(_check_noun, noun, remembers) for noun in NOUNS]
    if remembers:
        checks += [_check_order, _check_media, _check_discard, _check_replaced_instruction]
    if remembers and not upsert:
        checks += [partial(_check_absent, noun) for noun in NOUNS]
    for check in checks:
        async with made(make) as callbacks:
            await check(dict(callbacks))


async def _check_parameters(callbacks: dict[str, Any]) -> None:
    problems = [problem for problem in problems_of(callbacks) if not problem.startswith("executor_callback")]
    _promise(not problems, f"all 27 callbacks exist with the right parameters: {problems}")


def sample(noun: Noun, id: str = "one", text: str = "first") -> Any:
    """Return a primitive with every field set."""
    times = {"created_at": _AT, "updated_at": _AT}
    args = {"b": [1, {"ü": None}], "a": "x"}
    match noun:
        case "message":
            return Message(id=id, role="user", content=Tokenizable(text), identity=_speaker(7), **times)
        case "memory":
            return Memory(id=id, content=Tokenizable(text), confidence=0.25, importance=1.0, **times)
        case "thought":
            return Thought(
                id=id, content=Tokenizable(text), payload={"sealed": "x"}, replay_compatibility="test-1", **times
            )
        case "tool_call":
            return ToolCall(
                id=id, tool="look", args=args, results=Tokenizable(text), is_error=False, inline=False,
                checksum=tool_call_checksum("look", args), completed_at=_AT, **times,
            )  # fmt: skip
        case "retrievable":
            return Retrievable(
                id=id, content=Tokenizable(text), trust_tier="third-party-public", source="web", kind="page",
                score=0.5, **times,
            )  # fmt: skip
        case "standing_instruction":
            return Tokenizable(f"{id}: {text}")


def _speaker(identifier: int | str) -> Identity:
    return Identity(identifier=identifier, representation=Tokenizable("Ada"))


async def _check_noun(noun: Noun, remembers: bool, callbacks: dict[str, Any]) -> None:
    first, second = sample(noun), sample(noun, "two", "other")
    await _turn(callbacks, lambda ctx: _each(ctx, "store", noun, first, second))
    if not remembers:
        return
    _promise(await _fetch(callbacks, noun) == [first, second], f"a {noun} is fetched as it was stored")
    await _turn(callbacks, lambda ctx: _each(ctx, "store", noun, first))
    _promise(await _fetch(callbacks, noun) == [first, second], f"a {noun} stored twice is one record")
    if noun != "standing_instruction":
        changed = sample(noun, "one", "changed")
        await _turn(callbacks, lambda ctx: _each(ctx, "mutate", noun, changed))
        _promise(await _fetch(callbacks, noun) == [changed, second], f"a mutated {noun} keeps its place")
    await _turn(callbacks, lambda ctx: _each(ctx, "delete", noun, _target(noun, first)))
    _promise(await _fetch(callbacks, noun) == [second], f"a deleted {noun} is gone, and only that one")
    await _turn(callbacks, lambda ctx: _each(ctx, "delete", noun, _target(noun, first)))
    _promise(await _fetch(callbacks, noun) == [second], f"deleting an absent {noun} changes nothing")


async def _check_replaced_instruction(callbacks: dict[str, Any]) -> None:
    names = ("one", "two", "three")
    await _turn(callbacks, lambda ctx: _each(ctx, "store", "standing_instruction", *names))
    await _turn(callbacks, lambda ctx: ctx.mutate_standing_instruction("other", replaces="two"))
    found = await _fetch(callbacks, "standing_instruction")
    _promise(found == ["one", "other", "three"], "a mutated standing_instruction replaces the one it was called for")
    await _turn(callbacks, lambda ctx: _each(ctx, "delete", "standing_instruction", "other"))
    await _turn(callbacks, lambda ctx: _each(ctx, "store", "standing_instruction", "two"))
    found = await _fetch(callbacks, "standing_instruction")
    _promise(found == ["one", "three", "two"], "a standing_instruction is deleted and stored by its newest text")


async def _check_absent(noun: Noun, callbacks: dict[str, Any]) -> None:
    async def mutate(ctx: DispatchContext, helpers: Reporter) -> None:
        await ctx.store_message(sample("message", "beside"))
        await _each(ctx, "mutate", noun, sample(noun))
        ctx.ack()

    result = await TurnRunner(executor_callback=mutate, **callbacks).run()
    _promise(result.status == "nack", f"a mutation of an absent {noun} is an error")
    _promise(await _fetch(callbacks, noun) == [], f"a mutation of an absent {noun} does not create it")


async def _check_order(callbacks: dict[str, Any]) -> None:
    messages = [sample("message", f"m{n}") for n in (3, 1, 2)]
    await _turn(callbacks, lambda ctx: _each(ctx, "store", "message", *messages))
    _promise(await _fetch(callbacks, "message") == messages, "messages are fetched in the order they were stored in")


async def _check_discard(callbacks: dict[str, Any]) -> None:
    async def fail(ctx: DispatchContext) -> None:
        await ctx.store_message(sample("message"))
        ctx.nack(RuntimeError("on purpose"))

    await _turn(callbacks, fail)
    _promise(await _fetch(callbacks, "message") == [], "the changes of a nacked iteration are discarded")


async def _check_bytes(callbacks: dict[str, Any]) -> None:
    async def stream() -> Any:
        yield b"\x00\xff"
        yield b"\r\nend\n"

    async def store(ctx: Context) -> None:
        media = await ctx.store_media_bytes("a", stream())
        _promise(
            b"".join([b async for b in media.stream()]) == b"\x00\xff\r\nend\n", "media bytes are stored unchanged"
        )
        _promise(b"".join([b async for b in media.stream()]) != b"", "a media reader can be read again")
        first = await ctx.store_retrievable_bytes("a", "one\ntwö")
        await ctx.store_retrievable_bytes("b", b"other")
        _promise(await first.read_all() == "one\ntwö".encode(), "writing one spool does not change another")
        _promise(await first.line(1) == "twö" and await first.line(2) is None, "a spool can be read by line")
        _promise(await first.line_count() == 2 and await first.byte_length() == 8, "a spool reports its size")

    await _turn(callbacks, store)


async def _check_media(callbacks: dict[str, Any]) -> None:
    media = Media(
        id="pic", kind="image", mime_type="image/png", filename="pic.png", reader=BytesReader(b"\x89PNG\x00"),
        trust_tier="first-party", modality_hazard="opaque-perceptual",
    )  # fmt: skip
    message = Message(
        id="m", role="assistant", attachments=(media,), identity=_speaker("a"), created_at=_AT, updated_at=_AT
    )
    log = SpooledArtifact(BytesReader(b"one\ntwo\n"), "log")
    call = sample("tool_call").model_copy(update={"results": log})

    async def store(ctx: DispatchContext) -> None:
        await ctx.store_message(message)
        await ctx.store_tool_call(call)

    await _turn(callbacks, store)
    (fetched,) = await _fetch(callbacks, "message")
    _promise(await fetched.attachments[0].as_bytes() == b"\x89PNG\x00", "an attachment's bytes outlive their source")
    (call_again,) = await _fetch(callbacks, "tool_call")
    _promise(await call_again.results.as_bytes() == b"one\ntwo\n", "a spooled result outlives its source")
    _promise(json.dumps(fetched.to_json()) == json.dumps(message.to_json()), "a message survives JSON")


async def _turn(callbacks: dict[str, Any], act: Callable[[DispatchContext], Awaitable[None]]) -> None:
    failed: list[BaseException] = []

    async def executor(ctx: DispatchContext, helpers: Reporter) -> None:
        try:
            await act(ctx)
        except AssertionError as error:
            failed.append(error)  # a broken promise is not an executor error
        if not ctx.is_signalled:
            ctx.ack()

    result = await TurnRunner(executor_callback=executor, **callbacks).run()
    if failed:
        raise failed[0]
    if result.error is not None and not isinstance(result.error, RuntimeError):
        raise AssertionError(f"a turn completes: {result.error}") from result.error


async def _fetch(callbacks: dict[str, Any], noun: Noun) -> list[Any]:
    found: list[Any] = []

    async def fetch(ctx: DispatchContext) -> None:
        found.extend(await getattr(ctx, _FETCH[noun])())

    await _turn(callbacks, fetch)
    return found


async def _each(ctx: DispatchContext, verb: str, noun: Noun, *values: Any) -> None:
    for value in values:
        await getattr(ctx, f"{verb}_{noun}")(value)


def _target(noun: Noun, value: Any) -> Any:
    return value if noun == "standing_instruction" else name_of(value)


def _promise(kept: bool, promise: str) -> None:
    if not kept:
        raise BrokenPromise(promise, "it was not kept")
