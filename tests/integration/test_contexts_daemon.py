"""Contexts in real sandboxes: rich results, state that stays, interrupts, deaths with a cause, and bounds."""

from __future__ import annotations

import base64
import hashlib
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sandboxd.client import Client, RunOutcome, RunOutput, RunResult, Sandbox
from sandboxd.contexts.contexts import MAX_CONTEXTS
from sandboxd.errors import (
    ContextBusy,
    ContextExists,
    ContextNotFound,
    ContextUnsupported,
    InvalidRequest,
    LimitReached,
)
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

PNG = b"\x89PNG\r\n\x1a\n"
WAIT_FOR_BUSY_S = 60


@pytest.fixture(scope="module")
def sandbox(daemon: RunningDaemon, interpreter_image: str) -> Iterator[Sandbox]:
    with daemon.client() as client:
        sandbox = Sandbox.create(f"contexts-{uuid.uuid4().hex[:8]}", client=client, image="interpreter")
        assert sandbox.view.image == interpreter_image
        yield sandbox
        sandbox.kill()


@pytest.fixture(scope="module")
def shared(sandbox: Sandbox) -> str:
    """A context for tests that leave it usable."""
    return sandbox.contexts.create("shared").id


@pytest.fixture
def own(sandbox: Sandbox) -> Iterator[str]:
    """A context for one test."""
    context = sandbox.contexts.create().id
    yield context
    sandbox.contexts.remove(context)


def texts(result: RunResult, kind: str) -> str:
    return "".join(output.data["text/plain"] for output in result.outputs if output.type == kind)


def value(result: RunResult) -> str:
    assert result.ok, result
    return texts(result, "result")


def wait_until_busy(sandbox: Sandbox, context: str) -> None:
    pause = threading.Event()
    for _ in range(WAIT_FOR_BUSY_S * 20):
        if sandbox.contexts.get(context).state == "busy":
            return
        pause.wait(0.05)
    pytest.fail("the run did not begin")


def test_variables_stay_for_a_hundred_runs(sandbox: Sandbox, shared: str) -> None:
    before = sandbox.contexts.get(shared)
    assert sandbox.contexts.run(shared, "total = 0").ok
    for _ in range(100):
        assert sandbox.contexts.run(shared, "total += 1").ok
    assert value(sandbox.contexts.run(shared, "total")) == "100"
    after = sandbox.contexts.get(shared)
    assert after.execution_count == before.execution_count + 102
    assert (after.state, after.language, after.created_at) == ("idle", "python", before.created_at)


def test_a_plot_comes_out_as_a_png_without_any_call_to_show_it(sandbox: Sandbox, shared: str) -> None:
    result = sandbox.contexts.run(shared, "import matplotlib.pyplot as plt\nline = plt.plot([1, 2, 3])")
    assert result.ok
    (figure,) = result.outputs
    assert figure.type == "display"
    assert base64.b64decode(figure.data["image/png"]).startswith(PNG)
    assert sandbox.commands.run("ls -A /workspace").stdout == "memo\n", "its caches are elsewhere"


def test_the_last_expression_and_what_is_displayed_have_every_form(sandbox: Sandbox, shared: str) -> None:
    result = sandbox.contexts.run(shared, "import pandas\npandas.DataFrame({'a': [1]})")
    assert "<table" in result.outputs[-1].data["text/html"]
    assert "a" in result.outputs[-1].data["text/plain"]
    code = (
        "from IPython.display import display, HTML, JSON\ndisplay(HTML('<b>x</b>'))\ndisplay(JSON({'a': [1]}))\n'last'"
    )
    shown = sandbox.contexts.run(shared, code).outputs
    assert [output.type for output in shown] == ["display", "display", "result"]
    assert shown[0].data["text/html"] == "<b>x</b>"
    assert shown[1].data["application/json"] == {"a": [1]}
    assert shown[2].data == {"text/plain": "'last'"}


def test_printed_text_of_code_and_of_its_programs_is_kept_apart(sandbox: Sandbox, shared: str) -> None:
    code = "import sys, os\nprint('one')\nprint('two')\nsys.stderr.write('bad')\nos.system('echo three')"
    result = sandbox.contexts.run(shared, code)
    assert texts(result, "stderr") == "bad"
    assert texts(result, "stdout").splitlines() == ["one", "two", "three"]


def test_an_exception_is_a_result_with_a_plain_traceback(sandbox: Sandbox, shared: str) -> None:
    result = sandbox.contexts.run(shared, "def f():\n    raise ValueError('no such thing')\nprint('before')\nf()")
    assert not result.ok
    assert not result.state_lost
    assert texts(result, "stdout") == "before\n"
    error = result.outputs[-1]
    assert (error.type, error.ename, error.evalue) == ("error", "ValueError", "no such thing")
    assert error.traceback is not None
    assert "raise ValueError" in error.traceback
    assert "\x1b" not in error.traceback


def test_code_that_follows_an_error_at_once_runs(sandbox: Sandbox, shared: str) -> None:
    for number in range(40):
        assert not sandbox.contexts.run(shared, "1 / 0").ok
        result = sandbox.contexts.run(shared, f"{number} + 1")
        assert result.ok
        assert [output.data["text/plain"] for output in result.outputs] == [str(number + 1)]


def test_a_request_for_input_is_refused(sandbox: Sandbox, shared: str) -> None:
    result = sandbox.contexts.run(shared, "input('name? ')")
    assert result.outputs[-1].ename == "StdinNotImplementedError"
    assert "input" in (result.outputs[-1].evalue or "")


def test_an_endless_loop_is_interrupted_and_variables_stay(sandbox: Sandbox, own: str) -> None:
    assert sandbox.contexts.run(own, "x = 41").ok
    result = sandbox.contexts.run(own, "print('begun')\nwhile True: pass", timeout_s=1)
    assert (result.ok, result.timed_out, result.state_lost) == (False, True, False)
    assert texts(result, "stdout") == "begun\n"
    assert result.outputs[-1].ename == "KeyboardInterrupt"
    assert value(sandbox.contexts.run(own, "x + 1")) == "42"


def test_a_kernel_that_ignores_interrupts_is_replaced_and_the_answer_says_so(sandbox: Sandbox, own: str) -> None:
    code = "import subprocess, time\nchild = subprocess.Popen(['setsid', 'sleep', '4711'])\nwhile True:\n"
    code += "    try:\n        time.sleep(1)\n    except KeyboardInterrupt:\n        pass"
    result = sandbox.contexts.run(own, code, timeout_s=2)
    assert (result.timed_out, result.state_lost, result.cause) == (True, True, "stuck")
    assert result.outputs[-1].ename == "KernelDied"
    assert sandbox.commands.run("pgrep -x sleep").exit_code == 1, "everything it started is dead"
    assert sandbox.contexts.run(own, "child").outputs[-1].ename == "NameError"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os; os._exit(3)", "exited"),
        ("exit()", "exited"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed"),
        ("hog = [bytearray(50_000_000) for _ in range(1000)]", "oom"),
    ],
)
def test_the_death_of_a_kernel_is_named_and_the_next_run_works(
    sandbox: Sandbox, own: str, code: str, cause: str
) -> None:
    result = sandbox.contexts.run(own, code)
    assert (result.ok, result.state_lost, result.cause) == (False, True, cause)
    assert result.outputs[-1].ename == "KernelDied"
    assert sandbox.contexts.get(own).state == "dead"
    after = sandbox.contexts.run(own, "1 + 1")
    assert value(after) == "2"
    assert not after.state_lost, "it was reported by the run that saw it"


def test_a_death_between_two_runs_is_reported_by_the_next_one(sandbox: Sandbox, own: str) -> None:
    code = "import os, threading\nx = 1\nthreading.Timer(0.3, lambda: os._exit(7)).start()"
    assert sandbox.contexts.run(own, code).ok
    pause = threading.Event()
    while sandbox.contexts.get(own).state != "dead":
        pause.wait(0.05)
    result = sandbox.contexts.run(own, "'x' in globals()")
    assert (value(result), result.state_lost, result.cause) == ("False", True, "exited")


def test_code_can_be_interrupted_from_elsewhere(sandbox: Sandbox, own: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(sandbox.contexts.run, own, "import time; time.sleep(600)")
        wait_until_busy(sandbox, own)
        sandbox.contexts.interrupt(own)
        result = run.result()
    assert (result.ok, result.timed_out, result.state_lost) == (False, False, False)
    assert result.outputs[-1].ename == "KeyboardInterrupt"


def test_one_run_at_a_time_and_contexts_side_by_side(sandbox: Sandbox, own: str, shared: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(sandbox.contexts.run, own, "import time; time.sleep(600)")
        wait_until_busy(sandbox, own)
        with pytest.raises(ContextBusy, match="runs other code"):
            sandbox.contexts.run(own, "1")
        assert value(sandbox.contexts.run(shared, "6 * 7")) == "42"
        sandbox.contexts.restart(own)
        result = run.result()
    assert (result.state_lost, result.cause) == (True, "restarted")
    assert value(sandbox.contexts.run(own, "1 + 1")) == "2"


def test_a_client_that_leaves_interrupts_its_run(sandbox: Sandbox, own: str) -> None:
    items = sandbox.contexts.stream(own, "kept = 1\nprint('begun', flush=True)\nimport time; time.sleep(600)")
    first = next(items)
    assert isinstance(first, RunOutput)
    assert first.data == {"text/plain": "begun\n"}
    items.close()
    pause = threading.Event()
    while sandbox.contexts.get(own).state == "busy":
        pause.wait(0.05)
    assert value(sandbox.contexts.run(own, "kept")) == "1"


def test_outputs_come_as_they_are_made(sandbox: Sandbox, shared: str) -> None:
    code = "import time\nprint('one', flush=True)\ntime.sleep(1)\nprint('two')\n3"
    items = list(sandbox.contexts.stream(shared, code))
    assert [item.type for item in items if isinstance(item, RunOutput)] == ["stdout", "stdout", "result"]
    end = items[-1]
    assert isinstance(end, RunOutcome)
    assert end.ok


def test_much_output_is_cut_and_the_answer_says_so(sandbox: Sandbox, own: str) -> None:
    result = sandbox.contexts.run(own, "print('0123456789' * 2_000_000)\n'end'", max_output_bytes=1_000_000)
    assert result.ok
    assert result.truncated
    assert texts(result, "stdout") == "0123456789" * 100_000
    assert result.outputs[-1].omitted == {"text/plain": 5}
    lines = sandbox.contexts.run(own, "for number in range(200_000): print(number)", max_output_bytes=100_000)
    assert lines.truncated
    printed = texts(lines, "stdout")
    assert "".join(f"{number}\n" for number in range(200_000)).startswith(printed)
    assert 80_000 < len(printed) < 100_000


def test_a_large_picture_passes_or_is_left_out_as_a_whole(sandbox: Sandbox, own: str) -> None:
    code = "import os\nfrom IPython.display import Image, display\n"
    code += f"picture = {PNG!r} + os.urandom(5_000_000)\ndisplay(Image(data=picture, format='png'))\nhash(picture)"
    whole = sandbox.contexts.run(own, code, max_output_bytes=16_000_000)
    assert not whole.truncated
    picture = base64.b64decode(whole.outputs[0].data["image/png"])
    assert len(picture) == 5_000_008
    assert value(sandbox.contexts.run(own, "import hashlib; hashlib.sha256(picture).hexdigest()")) == repr(
        hashlib.sha256(picture).hexdigest()
    )
    left_out = sandbox.contexts.run(own, "display(Image(data=picture, format='png'))")
    assert left_out.truncated
    (shown,) = left_out.outputs
    assert shown.data == {"text/plain": "<IPython.core.display.Image object>"}
    assert 6_600_000 < shown.omitted["image/png"] < 6_800_000


def test_a_context_is_a_process_that_the_list_names(sandbox: Sandbox, own: str) -> None:
    names = {process.context for process in sandbox.commands.list()}
    assert own in names
    assert own in {context.id for context in sandbox.contexts.list()}
    started = sandbox.commands.run("sleep 600", background=True)
    assert {process.context for process in sandbox.commands.list() if process.id == started.id} == {None}
    started.kill()


def test_contexts_are_bounded_and_names_are_unique(sandbox: Sandbox, client: Client) -> None:
    limits = {"memory_mb": 2048}
    with Sandbox.create(f"many-{uuid.uuid4().hex[:8]}", client=client, image="interpreter", limits=limits) as other:
        try:
            for number in range(MAX_CONTEXTS):
                other.contexts.create(f"c{number}")
            with pytest.raises(ContextExists, match="c0"):
                other.contexts.create("c0")
            with pytest.raises(LimitReached, match=f"{MAX_CONTEXTS} are open"):
                other.contexts.create()
            other.contexts.remove("c0")
            with pytest.raises(ContextNotFound, match="create it again"):
                other.contexts.run("c0", "1")
            assert other.contexts.create("c0").state == "idle"
            assert len(other.contexts.list()) == MAX_CONTEXTS
        finally:
            other.kill()


def test_an_image_without_a_kernel_names_the_image_to_use(client: Client) -> None:
    with Sandbox.create(f"plain-{uuid.uuid4().hex[:8]}", client=client) as plain:
        try:
            with pytest.raises(ContextUnsupported, match="image `interpreter`"):
                plain.contexts.create()
            assert plain.contexts.list() == []
            told = plain.tools.call("Python", {"code": "1", "context": True})
            assert not told.ok
            assert "`interpreter`" in told.content
        finally:
            plain.kill()


def test_unknown_contexts_and_too_long_timeouts_are_refused(sandbox: Sandbox, shared: str) -> None:
    with pytest.raises(ContextNotFound, match="none of that name"):
        sandbox.contexts.run("absent", "1")
    with pytest.raises(ContextNotFound):
        sandbox.contexts.remove("absent")
    with pytest.raises(InvalidRequest, match="max_timeout_s raises it"):
        sandbox.contexts.run(shared, "1", timeout_s=100_000)


def test_the_python_tool_keeps_state_and_saves_figures(sandbox: Sandbox) -> None:
    def call(code: str, **options: object) -> tuple[bool, str, dict[str, Any]]:
        result = sandbox.tools.call("Python", {"code": code, "context": "tool", **options})
        return result.ok, result.content, result.details

    assert call("x = 20\nprint('set')")[:2] == (True, "set")
    assert call("x + 1")[:2] == (True, "21")
    ok, content, details = call("import matplotlib.pyplot as plt; line = plt.plot([1])")
    assert ok
    (path,) = details["files"]
    assert content == f"[figure saved as {path}]"
    assert sandbox.files.read(path, format="bytes").startswith(PNG)
    ok, content, _ = call("1 / 0")
    assert not ok
    assert content.endswith("ZeroDivisionError: division by zero")
    ok, content, _ = call("while True: pass", timeout=1000)
    assert not ok
    assert content.endswith("[interrupted after 1 s; its variables are kept]")
    assert call("import os; os._exit(0)")[1] == "[the interpreter had exited: the variables of earlier runs are lost]"
    sandbox.commands.run("rm -r figures")
    sandbox.contexts.remove("tool")


def test_contexts_outlive_a_daemon_that_is_killed(engine_socket: str, interpreter_image: str) -> None:
    running = RunningDaemon()
    try:
        running.start()
        with running.client() as client:
            sandbox = Sandbox.create("s1", client=client, image="interpreter")
            context = sandbox.contexts.create("work")
            sandbox.contexts.run("work", "x = 41")
            run = threading.Thread(target=_run_until_lost, args=(sandbox,))
            run.start()
            wait_until_busy(sandbox, "work")
        running.kill()
        run.join()
        running.start()
        with running.client() as client:
            sandbox = Sandbox.connect("s1", client=client)
            (found,) = sandbox.contexts.list()
            assert (found.id, found.created_at) == ("work", context.created_at)
            pause = threading.Event()
            while sandbox.contexts.get("work").state == "busy":
                pause.wait(0.05)  # the run of the lost client is being interrupted
            assert value(sandbox.contexts.run("work", "x + 1")) == "42"
    finally:
        running.stop()


def _run_until_lost(sandbox: Sandbox) -> None:
    with pytest.raises(Exception):  # noqa: B017 - its daemon is killed
        sandbox.contexts.run("work", "import time; time.sleep(600)")
