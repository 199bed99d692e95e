"""Inspect: an evaluation whose samples run in sandboxes. A script plays the model, so no key is needed."""

from __future__ import annotations

import tempfile

from inspect_ai import Task, eval, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash


@task
def sums() -> Task:
    sample = Sample(input="What is the sum in numbers.txt?", target="6", files={"numbers.txt": "1\n2\n3\n"})
    return Task(dataset=[sample], solver=[use_tools(bash()), generate()], scorer=includes(), sandbox="sandboxd")


COMMAND = "paste -sd+ numbers.txt | python3 -c 'print(eval(input()))'"
SCRIPT = [
    ModelOutput.for_tool_call("mockllm/model", "bash", {"command": COMMAND}),
    ModelOutput.from_content("mockllm/model", "It is 6."),
]
for output in SCRIPT:
    output.usage = ModelUsage()  # otherwise Inspect counts tokens, with a table that it downloads

if __name__ == "__main__":
    model = get_model("mockllm/model", custom_outputs=SCRIPT)
    with tempfile.TemporaryDirectory() as logs:
        [log] = eval(sums(), model=model, log_dir=logs, display="none")
        for sample in log.samples or []:
            print(log.status, [message.text for message in sample.messages if message.role == "tool"])
            print({name: score.value for name, score in (sample.scores or {}).items()})
