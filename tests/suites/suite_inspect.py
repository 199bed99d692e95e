"""Inspect's own checks of a sandbox environment, and an evaluation of one sample with a set-up script."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from sandboxd.integrations.inspect_ai import SandboxdSandboxEnvironment

REFUSED = {"test_exec_as_user": "a sandbox has one user, and nothing in it becomes root"}


@pytest.fixture(scope="module")
async def shared_environment() -> AsyncIterator[SandboxEnvironment]:
    made = await SandboxdSandboxEnvironment.sample_init("self_check", None, {})
    yield made["default"]
    await SandboxdSandboxEnvironment.sample_cleanup("self_check", None, made, False)


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, shared_environment: SandboxEnvironment) -> SandboxEnvironment:
    if (reason := REFUSED.get(request.node.originalname)) is not None:
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    return shared_environment


async def test_a_sample_with_a_setup_script_and_files_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    outputs = [
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "cat prepared.txt given/data.txt"}),
        ModelOutput.from_content("mockllm/model", "the tool said what it said"),
    ]
    for output in outputs:
        output.usage = ModelUsage()  # else it counts tokens, with a table that it downloads
    model = get_model("mockllm/model", custom_outputs=outputs)
    sample = Sample(
        input="what was prepared?",
        target="said",
        files={"given/data.txt": "from the files"},
        setup="#!/usr/bin/env bash\nset -e\nprintf 'from the set-up script, ' > prepared.txt\n",
    )
    task = Task(dataset=[sample], solver=[use_tools(bash()), generate()], scorer=includes(), sandbox="sandboxd")

    [log] = await eval_async(task, model=model, log_dir=str(tmp_path))

    assert log.status == "success", log.error
    assert log.samples is not None
    answers = [(message.error, message.text) for message in log.samples[0].messages if message.role == "tool"]
    assert answers == [(None, "from the set-up script, from the files")]
    assert log.samples[0].scores is not None
    assert log.samples[0].scores["includes"].value == "C"
