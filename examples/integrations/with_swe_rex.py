"""SWE-ReX: a deployment in a sandbox, with a shell that keeps its state. Needs a running daemon."""

from __future__ import annotations

import asyncio

from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest, WriteFileRequest

from sandboxd.integrations.swe_rex import SandboxdDeployment


async def main() -> None:
    deployment = SandboxdDeployment(user="ada")
    await deployment.start()
    runtime = deployment.runtime
    await runtime.create_session(CreateBashSessionRequest())
    await runtime.run_in_session(BashAction(command="mkdir -p src && cd src && export NAME=Ada"))
    print((await runtime.run_in_session(BashAction(command="pwd; echo hello $NAME"))).output.split("\n"))

    await runtime.write_file(WriteFileRequest(path="src/test.py", content="assert 1 + 1 == 2\n"))
    print((await runtime.execute(Command(command=["python3", "src/test.py"]))).exit_code)
    await deployment.stop()


if __name__ == "__main__":
    asyncio.run(main())
