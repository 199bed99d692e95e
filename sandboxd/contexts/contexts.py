"""The contexts of a sandbox: create, list, run code in them, interrupt, restart and remove.

Nothing is kept here. A context is a background process with a label, so the runner knows them all, and they outlive the
daemon. Each request is a stream of its own to the context's bridge (`runner/inside/kernel_bridge.py`); closing the
stream interrupts its run.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, Protocol

import anyio

from sandboxd.contexts.bridge_lines import BridgeState, OutputReader, read_lines, read_outcome, read_state
from sandboxd.errors import (
    Conflict,
    ContextBusy,
    ContextExists,
    ContextFailed,
    ContextNotFound,
    ContextUnsupported,
    InvalidRequest,
    NothingListens,
    StreamClosed,
)
from sandboxd.models.context import Context, RunBody, RunOutcome, RunOutput, RunResult
from sandboxd.models.process import KilledProcess, Process, ProcessOutput, SignalName
from sandboxd.runner.calls import Exec, ProcessLabel
from sandboxd.runner.inside import wire
from sandboxd.runner.protocol import CONTEXT, RUNNER_TARGET

MAX_CONTEXTS = 8
"""In one sandbox: each is two processes of about 55 MB."""
PATIENCE_S = 120.0
"""How much longer than its timeout a run may take: to start a kernel, to interrupt the code, and to kill what is stuck.
The bridge is always done sooner."""
ANSWER_S = 90.0
_BRIDGE = f"{RUNNER_TARGET}/bridge.py"
_LOSSES = {
    "oom": "the kernel needed more memory than the sandbox has, and was killed",
    "killed": "the kernel was killed by a signal",
    "exited": "the kernel has exited",
    "stuck": "the kernel did not react to the interrupt, and was killed",
    "restarted": "the context was restarted",
}


class BridgeStream(Protocol):
    """A stream to a bridge. `runner.stream.RunnerStream` implements it."""

    async def receive(self) -> bytes: ...
    async def send(self, data: bytes) -> None: ...


class ContextRunner(Protocol):
    """The calls that contexts need from the runner. `runner.client.RunnerClient` implements it."""

    @property
    def max_timeout_s(self) -> float: ...
    async def start_process(self, call: Exec, *, label: ProcessLabel | None = None) -> Process: ...
    async def list_processes(self) -> list[Process]: ...
    async def read_process(
        self, process_id: str, offset: int = 0, limit: int = wire.MAX_DATA_BYTES, wait_s: float = 0
    ) -> ProcessOutput: ...
    async def kill_process(self, process_id: str, name: SignalName = "KILL", grace_s: float = 0) -> KilledProcess: ...
    def dial(self, *, unix: str | None = None) -> AbstractAsyncContextManager[BridgeStream]: ...


async def create_context(runner: ContextRunner, name: str | None = None) -> Context:
    """Start a context; return it once it can run code."""
    name = name or f"c{secrets.token_hex(4)}"
    call = Exec(("python3", "-B", _BRIDGE, _socket(name)))
    try:
        process = await runner.start_process(call, label=ProcessLabel(CONTEXT, name, MAX_CONTEXTS))
    except Conflict:
        raise ContextExists(
            f"cannot create the context {name}: it exists already; use it, or remove it first"
        ) from None
    except InvalidRequest as error:
        if "python3" in str(error):
            raise _unsupported("python3") from None
        raise
    try:
        await _wait_ready(runner, process)
    except BaseException:
        with anyio.CancelScope(shield=True), anyio.move_on_after(ANSWER_S):
            await runner.kill_process(process.id)
        raise
    return _describe(process, BridgeState("idle", 0))


async def list_contexts(runner: ContextRunner) -> list[Context]:
    found: dict[str, Context] = {}

    async def look(process: Process) -> None:
        found[process.id] = _describe(process, await _state(runner, process))

    processes = [process for process in await runner.list_processes() if process.context and process.running]
    async with anyio.create_task_group() as tasks:
        for process in processes:
            tasks.start_soon(look, process)
    return [found[process.id] for process in processes]


async def get_context(runner: ContextRunner, name: str) -> Context:
    process = await _find(runner, name)
    return _describe(process, await _state(runner, process))


async def remove_context(runner: ContextRunner, name: str) -> None:
    """End the context with everything that its code has started."""
    await runner.kill_process((await _find(runner, name)).id)


async def interrupt_context(runner: ContextRunner, name: str) -> Context:
    """Interrupt the run under way, if there is one, as Ctrl-C does."""
    return await _command(runner, name, "interrupt")


async def restart_context(runner: ContextRunner, name: str) -> Context:
    """Replace the kernel, and end everything that its code has started."""
    return await _command(runner, name, "restart")


async def run_code(runner: ContextRunner, name: str, body: RunBody) -> RunResult:
    """Run code to its end; text that follows text of the same kind is joined."""
    outputs: list[RunOutput] = []
    texts: list[str] = []
    kind = ""

    def join() -> None:
        if texts:
            outputs.append(RunOutput(type=kind, data={"text/plain": "".join(texts)}))
            texts.clear()

    async with stream_code(runner, name, body) as items:
        async for item in items:
            if isinstance(item, RunOutcome):
                join()
                return RunResult(outputs=outputs, **dict(item))
            if item.type != kind:
                join()
                kind = item.type
            if kind in ("stdout", "stderr"):
                texts.append(item.data["text/plain"])
            else:
                outputs.append(item)
    raise _died(name)


@asynccontextmanager
async def stream_code(
    runner: ContextRunner, name: str, body: RunBody
) -> AsyncGenerator[AsyncIterator[RunOutput | RunOutcome]]:
    """Run code and yield its outputs as they come; the last item is the outcome. Leaving early interrupts the code."""
    if body.timeout_s > runner.max_timeout_s:
        raise InvalidRequest(
            f"cannot run this: timeout_s must be at most {runner.max_timeout_s:.10g}; "
            "the daemon's setting max_timeout_s raises it"
        )
    request = {"op": "run", "code": body.code, "timeout": body.timeout_s, "max": body.max_output_bytes}
    async with _asked(runner, name, request) as lines:
        if "refused" in await _next_line(name, lines, ANSWER_S):
            raise ContextBusy(f"cannot run this: the context {name} runs other code; wait for it or interrupt it")
        items = _items(name, lines, OutputReader(body.max_output_bytes), body.timeout_s + PATIENCE_S)
        try:
            yield items
        finally:
            await items.aclose()


async def _items(
    name: str, lines: AsyncIterator[dict[str, Any]], reader: OutputReader, patience_s: float
) -> AsyncGenerator[RunOutput | RunOutcome]:
    deadline = anyio.current_time() + patience_s
    while True:
        line = await _next_line(name, lines, deadline - anyio.current_time())
        if "end" in line:
            outcome, is_earlier = read_outcome(line["end"])
            if outcome.cause is not None and not is_earlier:
                yield _loss(outcome.cause)
            yield outcome
            return
        output = reader.read(line)
        if output is not None:
            yield output


async def _next_line(name: str, lines: AsyncIterator[dict[str, Any]], patience_s: float) -> dict[str, Any]:
    with anyio.move_on_after(patience_s):
        line = await anext(lines, None)
        if line is None:
            raise _died(name)
        return line
    raise ContextFailed(f"cannot use the context {name}: its process does not answer; remove it and create another one")


def _loss(cause: str) -> RunOutput:
    value = f"{_LOSSES[cause]}; its variables are lost, and the next run starts a new one"
    return RunOutput(
        type="error",
        data={"text/plain": f"KernelDied: {value}"},
        ename="KernelDied",
        evalue=value,
        traceback=f"KernelDied: {value}",
    )


async def _command(runner: ContextRunner, name: str, op: str) -> Context:
    process = await _find(runner, name)
    state = await _ask_state(runner, name, op)
    return _describe(process, state)


async def _state(runner: ContextRunner, process: Process) -> BridgeState:
    try:
        return await _ask_state(runner, process.context or "", "status")
    except ContextNotFound:
        return BridgeState("starting", 0)  # it has a process that does not listen yet


async def _ask_state(runner: ContextRunner, name: str, op: str) -> BridgeState:
    async with _asked(runner, name, {"op": op}) as lines:
        return read_state(await _next_line(name, lines, ANSWER_S))


@asynccontextmanager
async def _asked(
    runner: ContextRunner, name: str, request: dict[str, Any]
) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
    """Send a request to a context's bridge; yield the lines of its answer."""
    try:
        async with runner.dial(unix=f"\0{_socket(name)}") as stream:
            await stream.send(json.dumps(request).encode() + b"\n")
            async with aclosing(read_lines(_pieces(stream))) as lines:
                yield lines
    except NothingListens:
        raise await _absent(runner, name) from None
    except StreamClosed:
        raise _died(name) from None


async def _pieces(stream: BridgeStream) -> AsyncIterator[bytes]:
    while piece := await stream.receive():
        yield piece


async def _find(runner: ContextRunner, name: str) -> Process:
    for process in await runner.list_processes():
        if process.context == name and process.running:
            return process
    raise await _absent(runner, name)


async def _absent(runner: ContextRunner, name: str) -> ContextNotFound:
    """Return why a context cannot be found: it has ended, or there never was one."""
    ended = [process for process in await runner.list_processes() if process.context == name]
    if not ended:
        return ContextNotFound(f"cannot find the context {name}: this sandbox has none of that name; create it first")
    code = ended[-1].exit_code
    how = "has been killed" if code is None or code > 128 else f"has exited with code {code}"
    return ContextNotFound(f"cannot use the context {name}: its process {how}; create it again")


async def _wait_ready(runner: ContextRunner, process: Process) -> None:
    """Wait until the bridge says that it is ready. It says so in the first line that it prints as JSON."""
    seen = b""
    deadline = anyio.current_time() + ANSWER_S
    while len(seen) < wire.MAX_DATA_BYTES and (left_s := deadline - anyio.current_time()) > 0:
        output = await runner.read_process(process.id, len(seen), wait_s=left_s)
        seen += output.data
        for line in seen.splitlines():
            if line.startswith(b'{"bridge"') and (report := _report(line)):
                if report.get("bridge") == "ready":
                    return
                if report.get("bridge") == "unsupported":
                    raise _unsupported(report.get("missing"))
                raise ContextFailed(
                    "cannot create this context: its kernel did not start; give the sandbox more memory"
                )
        if not output.process.running and not output.data:
            break
    last = (seen.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"])[-1][:200]
    raise ContextFailed(f"cannot create this context: its process did not start: {last}")


def _report(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _unsupported(missing: object) -> ContextUnsupported:
    names = ", ".join(str(name)[:40] for name in missing[:3]) if isinstance(missing, list) else "ipykernel"
    return ContextUnsupported(
        f"cannot create a context in this sandbox: its image has no {names}; create the sandbox with the image "
        "`interpreter` (build it with `sandboxd image build interpreter`), or install ipykernel in your image"
    )


def _died(name: str) -> ContextFailed:
    return ContextFailed(f"cannot tell the outcome: the process of the context {name} has ended; create it again")


def _describe(process: Process, state: BridgeState) -> Context:
    return Context(
        id=process.context or "",
        language="python",
        state=state.state,
        created_at=process.started_at,
        execution_count=state.execution_count,
    )


def _socket(name: str) -> str:
    """Return the name of a context's socket, which belongs to the container's own network namespace."""
    return f"sandboxd-context-{name}"
