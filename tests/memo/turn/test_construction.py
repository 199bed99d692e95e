"""A runner is validated at construction: all 27 callbacks and the executor, and their parameters."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from memo import InMemoryStore
from memo.turn import InvalidTurnRunnerConfig, TurnRunner, noop_callbacks, store_callbacks
from memo.turn.callbacks import BYTES_CALLBACKS, CHANGE_CALLBACKS, FETCH_CALLBACKS, PARAMETERS


async def executor(ctx: Any, helpers: Any) -> None:
    ctx.ack()


def of(count: int) -> Any:
    return [lambda: None, lambda a: None, lambda a, b: None, lambda a, b, c: None, lambda a, b, c, d: None][count]


# Specification: 000.5
def test_there_are_27_callbacks() -> None:
    assert (len(FETCH_CALLBACKS), len(CHANGE_CALLBACKS), len(BYTES_CALLBACKS)) == (7, 18, 2)
    assert len(PARAMETERS) == 27
    assert set(noop_callbacks()) == set(store_callbacks(InMemoryStore())) == set(PARAMETERS)


# Specification: 000.2
@pytest.mark.parametrize("name", PARAMETERS)
def test_every_callback_is_required(name: str) -> None:
    callbacks = noop_callbacks()
    del callbacks[name]
    with pytest.raises(InvalidTurnRunnerConfig, match=name) as caught:
        TurnRunner(executor_callback=executor, **callbacks)
    assert caught.value.code == "E_INVALID_TURN_RUNNER_CONFIG"
    assert caught.value.problems == (f"{name} is missing",)


# Specification: 000.3
@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("count", range(5))
def test_a_callback_must_have_the_right_number_of_parameters(name: str, count: int) -> None:
    callbacks = {**noop_callbacks(), name: of(count)}
    if count == len(PARAMETERS[name]):
        TurnRunner(executor_callback=executor, **callbacks)
        return
    with pytest.raises(InvalidTurnRunnerConfig) as caught:
        TurnRunner(executor_callback=executor, **callbacks)
    assert caught.value.problems[0].startswith(f"{name} has {count} parameter")


# Specification: 000.2
def test_the_executor_is_required_and_takes_two_parameters() -> None:
    with pytest.raises(InvalidTurnRunnerConfig, match="executor_callback is missing"):
        TurnRunner(**noop_callbacks())
    with pytest.raises(InvalidTurnRunnerConfig, match="executor_callback has 1 parameter"):
        TurnRunner(executor_callback=of(1), **noop_callbacks())


def test_all_problems_are_reported_at_once() -> None:
    callbacks = noop_callbacks()
    del callbacks["store_memory_callback"]
    callbacks["fetch_tools_callback"] = of(0)
    callbacks["delete_thought_callback"] = "no function"
    with pytest.raises(InvalidTurnRunnerConfig) as caught:
        TurnRunner(**callbacks, store_dream_callback=of(2), turn_input_pipeline=[of(1)], max_iterations=0)
    assert sorted(caught.value.problems) == sorted(
        [
            "executor_callback is missing",
            "store_memory_callback is missing",
            "fetch_tools_callback has 0 parameters and must have 1: (ctx)",
            "delete_thought_callback is not callable",
            "store_dream_callback is not a callback",
            "turn_input_pipeline[0] has 1 parameter and must have 2: (ctx, next)",
            "max_iterations must be at least 1",
        ]
    )


# Specification: 000.4
def test_a_wrapper_that_hides_its_parameters_is_rejected() -> None:
    def store(ctx: Any, value: Any) -> None: ...

    @functools.wraps(store)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        store(*args, **kwargs)

    with pytest.raises(InvalidTurnRunnerConfig, match="store_message_callback has 0 parameters"):
        TurnRunner(executor_callback=executor, **{**noop_callbacks(), "store_message_callback": wrapper})


# Specification: 000.4
@pytest.mark.parametrize(
    ("what", "callback", "is_taken"),
    [
        ("a method", type("Store", (), {"keep": lambda self, ctx, value: None})().keep, True),
        ("a partial", functools.partial(lambda store, ctx, value: None, object()), True),
        ("an object that can be called", type("Store", (), {"__call__": lambda self, ctx, value: None})(), True),
        ("one more parameter with a default", lambda ctx, value, store=None: None, True),
        ("a default where a parameter must be", lambda ctx, value=None: None, False),
        ("one more by keyword", lambda ctx, value, *, store: None, False),
        ("nothing at all", None, False),
    ],
)
def test_parameters_are_counted_as_they_are_declared(what: str, callback: Any, is_taken: bool) -> None:
    callbacks = {**noop_callbacks(), "store_message_callback": callback}
    if is_taken:
        TurnRunner(executor_callback=executor, **callbacks)
        return
    with pytest.raises(InvalidTurnRunnerConfig, match="store_message_callback"):
        TurnRunner(executor_callback=executor, **callbacks)
