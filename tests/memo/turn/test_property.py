"""Any interleaving of store, mutate, delete, ack, nack and abort stores exactly the changes of acked iterations."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memo.turn import TurnRunner, store_callbacks
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


def apply(model: Model, change: Change) -> None:
    verb, noun, id, text = change
    value = sample(noun, id, text)
    name = str(value) if noun == "standing_instruction" else id
    if verb == "delete":
        model[noun].pop(name, None)
    else:
        model[noun][name] = value


def copied(model: Model) -> Model:
    return {noun: dict(values) for noun, values in model.items()}


async def play(kind: str, path: Path, script: list[Any]) -> None:
    model: Model = {noun: {} for noun in NOUNS}
    async with opened(kind, path) as store:
        callbacks = store_callbacks(store)
        for turn in script:
            await play_turn(callbacks, turn, model)
            for noun in NOUNS:
                assert await callbacks[FETCH[noun]](None) == list(model[noun].values())
    if kind == "memory":
        return
    async with opened(kind, path) as store:  # acked changes survive a reopening
        callbacks = store_callbacks(store)
        for noun in NOUNS:
            assert await callbacks[FETCH[noun]](None) == list(model[noun].values())


async def play_turn(callbacks: dict[str, Any], turn: list[Any], model: Model) -> None:
    async def executor(ctx: Any, helpers: Any) -> None:
        steps, ending = turn[ctx.iteration]
        draft = copied(model)
        for verb, noun, id, text in steps:
            value = sample(noun, id, text)
            target = value if verb != "delete" or noun == "standing_instruction" else id
            await getattr(ctx, f"{verb}_{noun}")(target)
            apply(draft, (verb, noun, id, text))
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
            model.update(draft)

    result = await TurnRunner(executor_callback=executor, **callbacks, max_iterations=len(turn)).run()
    assert not isinstance(getattr(result.error, "__cause__", None), AssertionError), result.error


@pytest.mark.parametrize("kind", STORES)
def test_a_store_holds_exactly_the_changes_of_acked_iterations(kind: str) -> None:
    examples = {"memory": 100, "sqlite": 30, "filesystem": 30}[kind]

    @settings(max_examples=examples, deadline=None, database=None)
    @given(turns)
    def check(script: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as path:
            anyio.run(play, kind, Path(path), script)

    check()
