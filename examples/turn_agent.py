"""A scripted agent that runs a turn, calls tools, is killed in the middle, and resumes where it stopped.

No model is needed: the script plays one. `python examples/turn_agent.py` runs it; it cleans up after itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import anyio
from rich.console import Console

import memo
from memo.primitives import Message, Tokenizable, ToolCall, tool_call_checksum
from memo.spool import SpooledArtifact
from memo.turn import DispatchContext, Reporter, Tool, TurnContext, TurnRunner, artifact_tools, store_callbacks

console = Console(highlight=False, soft_wrap=True)
QUESTION = "Which request failed?"


def message(role: str, text: str) -> Message:
    now = datetime.now(UTC)
    return Message(id=str(uuid.uuid4()), role=role, content=text, identity=role, created_at=now, updated_at=now)


def tool_call(id: str, tool: Tool, args: Mapping[str, Any], results: Tokenizable | SpooledArtifact) -> ToolCall:
    now = datetime.now(UTC)
    return ToolCall(
        id=id,
        tool=tool.name,
        args=dict(args),
        results=results,
        is_error=False,
        checksum=tool_call_checksum(tool.name, args),
        from_artifact_tool=tool.is_artifact_tool,
        created_at=now,
        updated_at=now,
        completed_at=now,
    )


async def read_log(ctx: Any, args: Mapping[str, Any]) -> SpooledArtifact:
    """A tool with a result too long for a model: the store keeps it, and the model gets a handle."""
    lines = "".join(f"GET /page/{n} {500 if n == 4711 else 200}\n" for n in range(10_000))
    return SpooledArtifact(await ctx.store_retrievable_bytes("access.log", lines))


async def load_history(ctx: TurnContext, next: Any) -> None:
    """Middleware that requests the history, which is not in scope by default."""
    for earlier in await ctx.fetch_messages():
        ctx.turn_messages.add(earlier)
    for call in await ctx.fetch_tool_calls():
        ctx.turn_tool_calls.add(call)
    console.print(f"    in scope: {len(ctx.turn_messages)} messages, {len(ctx.turn_tool_calls)} tool calls")
    await next()


async def play_model(ctx: DispatchContext, helpers: Reporter) -> None:
    """Run one iteration: the script decides from the history, as a model would."""
    done = {call.tool for call in ctx.turn_tool_calls}
    if not ctx.turn_messages:
        await ctx.store_message(message("user", QUESTION))
    if "read_log" not in done:
        tool = ctx.tools.get("read_log")
        await ctx.store_tool_call(tool_call("call-1", tool, {}, await tool.handler(ctx, {})))
    elif "artifact_grep" not in done:
        if os.environ.get("CRASH"):
            await ctx.store_message(message("assistant", "Let me look at the lo"))
            console.print("    kill -9, with a message queued and not flushed")
            os.kill(os.getpid(), signal.SIGKILL)
        tools = {tool.name: tool for tool in artifact_tools(ctx.turn_tool_calls)}
        args = {"call_id": "call-1", "pattern": " 500$"}
        found = await tools["artifact_grep"].handler(ctx, args)
        await ctx.store_tool_call(tool_call("call-2", tools["artifact_grep"], args, found))
    else:
        (found,) = [str(call.results) for call in ctx.turn_tool_calls if call.tool == "artifact_grep"]
        answer = message("assistant", f"This one: {found}")
        for word in str(answer.content).split():
            await helpers.report_message(answer.id, f"{word} ")
        await helpers.report_message(answer.id, is_complete=True)
        await ctx.store_message(answer)
        ctx.ack()


async def run_turn(path: str) -> None:
    async with memo.open_store(f"sqlite:///{path}") as store:
        turns = TurnRunner(
            executor_callback=play_model,
            **store_callbacks(store),
            tools=[Tool("read_log", "The access log.", read_log)],
            turn_input_pipeline=[load_history],
        )
        turns.on(
            "iteration_end", lambda event: console.print(f"    iteration {event.iteration}: {event.stored} stored")
        )
        turns.on("message", lambda event: console.print(f"    {event.full}") if event.is_complete else None)
        result = await turns.run(tenant="acme", user="ada", session="logs")
        console.print(f"    {result.status} after {result.iterations} iterations; ghosts: {result.audit()}")
        if result.error is not None:
            raise result.error


def main() -> None:
    if len(sys.argv) == 2:
        anyio.run(run_turn, sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, f"{directory}/memo.db"]
        console.print("[bold]▸ the first try[/]")
        crashed = subprocess.run(command, env={**os.environ, "CRASH": "1"}, check=False)
        console.print(f"    exit code {crashed.returncode}")
        console.print("[bold]▸ the second try, on the same store[/]")
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
