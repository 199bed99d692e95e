"""Rollouts for reinforcement learning: one session is prepared, forked, and each fork is scored. The best is printed.

A fork has the prepared files and its own container, so rollouts do not disturb each other. A random policy stands in
for a model. Usage: python rl_rollouts.py [FORKS], 50 by default.
"""

from __future__ import annotations

import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sandboxd.client import Sandbox

WORKERS = 8
TASK = """import json, sys

def loss(x, y):
    return (x - 3) ** 2 + (y + 1) ** 2

print(json.dumps({"reward": -loss(*map(float, sys.argv[1:]))}))
"""
SCORE = "python3 score.py {0} {1} | tee result.json | python3 -c 'import json; print(json.load(open(0))[\"reward\"])'"


@dataclass(frozen=True)
class Rollout:
    session: str
    action: tuple[float, float]
    reward: float


def roll_out(sandbox: Sandbox, seed: int) -> Rollout:
    """Take one action in a fork, and read its reward. This is where a model would act in many steps."""
    policy = random.Random(seed)  # noqa: S311  # reproducible, not secret
    action = (round(policy.uniform(-5, 5), 2), round(policy.uniform(-5, 5), 2))
    done = sandbox.commands.run(SCORE.format(*action), timeout_s=60)
    return Rollout(sandbox.session, action, float(done.stdout) if done.exit_code == 0 else float("-inf"))


def main(count: int) -> None:
    with Sandbox.create("rollout", user="trainer") as start:
        start.files.write("score.py", TASK)  # prepare once what every rollout needs
        began = time.monotonic()
        forks = start.fork(count=count, memory="none")
        print(f"{len(forks)} forks", file=sys.stderr)
        try:
            with ThreadPoolExecutor(WORKERS) as pool:
                rollouts = list(pool.map(roll_out, forks, range(count)))
        finally:
            with ThreadPoolExecutor(WORKERS) as pool:
                list(pool.map(Sandbox.kill, [*forks, start]))
        best = max(rollouts, key=lambda rollout: rollout.reward)
        print(f"{len(rollouts)} rollouts in {time.monotonic() - began:.1f} s", file=sys.stderr)
        print(f"best of {len(rollouts)}: action {best.action}, reward {best.reward:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
