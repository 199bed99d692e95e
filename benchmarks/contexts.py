"""Code in a context beside the same code in a new interpreter, interleaved.

`python -m benchmarks.contexts [--rounds N]` prints a table and writes benchmarks/results/contexts.json. It needs the
image `interpreter`.
"""

from __future__ import annotations

import argparse

from benchmarks import interruptible
from benchmarks.daemon import own_directory, serving
from benchmarks.measure import Act, Figure, interleave, show, write
from sandboxd.client import AsyncClient

CONTEXT, FRESH = "run 1+1 in a context", "exec python3 -c 'print(1+1)'"


async def measure(rounds: int) -> list[Figure]:
    with own_directory() as root:
        async with serving(root) as daemon, AsyncClient(daemon.socket) as client:
            await client.ensure_sandbox("s", "ada", image="interpreter")
            context = (await client.create_context("s")).id
            acts: dict[str, Act] = {
                CONTEXT: lambda: client.run_code("s", context, "1+1"),
                FRESH: lambda: client.exec("s", ["python3", "-c", "print(1+1)"]),
                "exec true": lambda: client.exec("s", ["true"]),
            }
            return await interleave(acts, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    figures = interruptible.run(measure, parser.parse_args().rounds)
    show("code that keeps its state", figures, FRESH)
    print(f"written to {write('contexts', {'code that keeps its state': figures}, []).name}")


if __name__ == "__main__":
    main()
