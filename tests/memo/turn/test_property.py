"""Any interleaving of store, mutate, delete, ack, nack and abort stores exactly the changes of acked iterations."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memo.errors import Absent
from memo.turn import FlushError, TurnRunner, store_callbacks
from memo.turn.callbacks import NOUNS, Noun
from memo.turn.conformance import sample
from tests.memo.turn.stores import STORES, opened

FETCH = {
    "message": "fetch_messages_callback",
    "memory": "fetch_memories_callback",
    "thought": "fetch_thoughts_callback",
    "tool_call": "fetch_tool_calls_callback",
    "retrievable": "fetch_retrievables_callback",
    "standing_instruction": "refresh_standing_instructions_callback",
}
Model = dict[Noun, dict[str, Any]]
Change = tuple[str, Noun, str, str]

changes = st.tuples(
    st.sampled_from(["store", "mutate", "delete"]),
    st.sampled_from(NOUNS),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["1", "2"]),
)
iterations = st.tuples(
    st.lists(changes, max_size=6), st.sampled_from(["go on", "go on", "ack", "nack", "abort", "raise"])
)
turns = st.lists(st.lists(iterations, min_size=1, max_size=4), min_size=1, max_size=4)


def apply(model: Model, change: Change, upsert: bool) -> None:
    """Change the model, or raise LookupError if the store must refuse the change."""
    verb, noun, id, text = change
    value = sample(noun, id, text)
    name = str(value) if noun == "standing_instruction" else id
    old = replaced(id) if noun == "standing_instruction" else id
    if verb == "delete":
        model[noun].pop(name, None)
    elif verb == "store" or (upsert and old not in model[noun]):
        model[noun][name] = value
    elif old not in model[noun]:
        raise LookupError(old)
    elif old != name and name in model[noun]:
        del model[noun][old]
    else:
        model[noun] = {name if key == old else key: value if key == old else kept for key, kept in model[noun].items()}


def replaced(id: str) -> str:
    """Return the text of the instruction that every mutation of this id replaces."""
    return str(sample("standing_instruction", id, "1"))


def copied(model: Model) -> Model:
    return {noun: dict(values) for noun, values in model.items()}


async def play(kind: str, path: Path, script: list[Any], upsert: bool) -> None:
    model: Model = {noun: {} for noun in NOUNS}
    async with opened(kind, path) as store:
        callbacks = store_callbacks(store, upsert=upsert)
        for turn in script:
            await play_turn(callbacks, turn, model, upsert)
            for noun in NOUNS:
                assert await callbacks[FETCH[noun]](None) == list(model[noun].values())
    if kind == "memory":
        return
    async with opened(kind, path) as store:  # acked changes survive a reopening
        callbacks = store_callbacks(store)
        for noun in NOUNS:
            assert await callbacks[FETCH[noun]](None) == list(model[noun].values())


async def play_turn(callbacks: dict[str, Any], turn: list[Any], model: Model, upsert: bool) -> None:
    refused = False

    async def executor(ctx: Any, helpers: Any) -> None:
        nonlocal refused
        steps, ending = turn[ctx.iteration]
        draft = copied(model)
        if ctx.iteration == 0:
            for instruction in await ctx.refresh_standing_instructions():
                ctx.standing_instructions.add(instruction)
        for verb, noun, id, text in steps:
            value = sample(noun, id, text)
            target = value if verb != "delete" or noun == "standing_instruction" else id
            more = {"replaces": replaced(id)} if (verb, noun) == ("mutate", "standing_instruction") else {}
            await getattr(ctx, f"{verb}_{noun}")(target, **more)
            try:
                apply(draft, (verb, noun, id, text), upsert)
            except LookupError:
                refused = True
            if not refused:
                assert list(ctx.standing_instructions) == list(draft["standing_instruction"].values())
        for noun in NOUNS:  # nothing is in the store yet
            assert await callbacks[FETCH[noun]](None) == list(model[noun].values())
        if ending == "nack":
            ctx.nack(RuntimeError("on purpose"))
        elif ending == "abort":
            ctx.abort()
        elif ending == "raise":
            raise RuntimeError("on purpose")
        else:
            if ending == "ack":
                ctx.ack()
            if not refused:
                model.update(draft)

    result = await TurnRunner(executor_callback=executor, **callbacks, max_iterations=len(turn)).run()
    cause = getattr(result.error, "__cause__", None)
    assert not isinstance(cause, AssertionError), result.error
    assert isinstance(result.error, FlushError) == (refused and isinstance(cause, Absent))


# Specification: 000.13, 003.4
@pytest.mark.parametrize("upsert", [False, True], ids=["strict", "upsert"])
@pytest.mark.parametrize("kind", STORES)
def test_a_store_holds_exactly_the_changes_of_acked_iterations(kind: str, upsert: bool) -> None:
    examples = {"memory": 60, "sqlite": 20, "filesystem": 20}[kind]

    @settings(max_examples=examples, deadline=None, database=None)
    @given(turns)
    def check(script: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as path:
            anyio.run(play, kind, Path(path), script, upsert)

    check()
