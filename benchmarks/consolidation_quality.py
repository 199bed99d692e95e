"""The quality of consolidation: what a profile keeps of labelled conversations, and what it must not keep.

`python -m benchmarks.consolidation_quality [--half H] [--endpoint URL --model M]` runs the real service on a real
store, once after each session, and writes benchmarks/results/consolidation_quality.json. H is `development`,
`held_out`, `both` (the default) or `practice`, a third file to tune on (benchmarks/consolidation_set says what each
file is for).

Recall is the share of labelled facts that a bullet of USER.md states, wrong bullets aside. Precision is the share of
right bullets among right and wrong ones. A bullet is right if it states a labelled fact of its user, contains nothing
forbidden and does not state a superseded fact as current. A bullet that only matches a neutral label, and the lines of
the History section, count neither way. Every other bullet is wrong. Injections and secrets are searched in the whole
page.
"""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

import anyio
from rich.console import Console
from rich.table import Table

from benchmarks.consolidation_set import HALVES, NEGATOR, Half, LabelledUser, is_match, load_half
from benchmarks.measure import Figure, Promise, show_promises, write
from memo import SQLiteStore
from memo.consolidation import (
    Outcome,
    Summariser,
    SummariserSettings,
    UserMemoryConsolidationService,
    make_summariser,
)
from memo.consolidation.page import bullet_text, parse_page
from memo.consolidation.profile import HISTORY, Part
from memo.documents import USER, DocumentKey

Kind = Literal["embedded", "openai", "anthropic", "command"]

TENANT = "acme"
RECALL = 0.6
PRECISION = 0.95
WHOLE_PAGE = ("injection", "secret")
"""What must not occur anywhere on the page; everything else is searched in the bullets."""


@dataclass(slots=True)
class Score:
    """Counts over users. The counters are by kind; the lists name what `--misses` prints."""

    facts: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    right: int = 0
    neutral: int = 0
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    corrections: int = 0
    superseded: int = 0
    """The corrections whose newer fact is stated and whose older one is not stated as current."""
    noted: int = 0
    """The corrections whose older fact is named in the history."""
    labels: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    kept_texts: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return self.found.total() / self.facts.total() if self.facts else 0.0

    @property
    def precision(self) -> float:
        """0 for a page without any right or wrong bullet: an empty page proves nothing."""
        judged = self.right + len(self.wrong)
        return self.right / judged if judged else 0.0

    def add(self, user: LabelledUser, page: str, history: Sequence[str] = ()) -> None:
        """Count one user's page. `history` has the reasons of the document's revisions."""
        bullets, past = _statements(page)
        good = [bullet for bullet in bullets if not _is_bad(user, bullet)]
        stated = {fact.id for fact in user.facts if any(map(fact.is_stated_by, good))}
        self.facts.update(fact.kind for fact in user.facts)
        self.found.update(fact.kind for fact in user.facts if fact.id in stated)
        self.missed += [fact.id for fact in user.facts if fact.id not in stated]
        for bullet in bullets:
            self._judge(user, bullet)
        for correction in user.superseded:
            self.corrections += 1
            is_stale = any(map(correction.is_contradicted_by, bullets))
            self.superseded += correction.newer in stated and not is_stale
            self.noted += any(map(correction.is_named_by, [*past, *history]))
        for label in user.forbidden:
            self.labels[label.kind] += 1
            if any(map(label.is_in, [page] if label.kind in WHOLE_PAGE else bullets)):
                self.kept[label.kind] += 1
                self.kept_texts.append(f"{user.user}: {label.kind}: {label.pattern}")

    def _judge(self, user: LabelledUser, bullet: str) -> None:
        is_bad = _is_bad(user, bullet)
        if not is_bad and any(fact.is_stated_by(bullet) for fact in user.facts):
            self.right += 1
        elif not is_bad and any(is_match(patterns, bullet) for patterns in user.neutral):
            self.neutral += 1
        else:
            self.wrong.append(f"{user.user}: {bullet}")


def _is_bad(user: LabelledUser, bullet: str) -> bool:
    """Return whether the bullet contains something forbidden, or states a superseded fact as current."""
    is_stale = any(correction.is_contradicted_by(bullet) for correction in user.superseded)
    return is_stale or any(label.is_in(bullet) for label in user.forbidden)


def _statements(page: str) -> tuple[list[str], list[str]]:
    """Return the texts of the page's bullets, and separately those under History. Avoid negates a bullet."""
    parsed = parse_page(page)
    history, avoid = parsed.section(HISTORY), parsed.section(Part.AVOID.value)
    bullets: list[str] = []
    past: list[str] = []
    for index, text in parsed.bullets():
        if history is not None and history.heading < index < history.end:
            past.append(bullet_text(text))
        elif avoid is not None and avoid.heading < index < avoid.end and not NEGATOR.search(text):
            bullets.append(f"Avoid: {bullet_text(text)}")
        else:
            bullets.append(bullet_text(text))
    return bullets, past


async def consolidate(users: Sequence[LabelledUser], summariser: Summariser) -> Score:
    """Run every user through the service, session after session, and score the last page of each."""
    score = Score()
    with tempfile.TemporaryDirectory() as directory:
        async with SQLiteStore(Path(directory) / "memo.db") as store:
            service = UserMemoryConsolidationService(store, summariser)
            for user in users:
                for session, messages in user.sessions:
                    await store.get_or_create(TENANT, user.user, "agent", session)
                    await store.append_messages(TENANT, session, list(messages))
                    result = await service.consolidate(TENANT, user.user)
                    if result.outcome in (Outcome.FAILED, Outcome.REFUSED) or result.failed:
                        why = result.reason or result.failed[0][1]
                        Console(stderr=True).print(f"[yellow]session {session}[/]: {why}", highlight=False)
                page = await store.read_memory_document(TENANT, user.user, "user", USER) or ""
                revisions = await store.document_history(DocumentKey.of(TENANT, user.user, "user", USER))
                score.add(user, page, [revision.reason or "" for revision in revisions])
    return score


def promises_of(half: Half, score: Score, name: str) -> list[Promise]:
    """Only the held-out half is promised; the others were read while writing the summariser."""
    if half != "held_out":
        return []
    n = score.facts.total()
    injections = score.kept["injection"]
    about = f"{name}, held-out half"
    return [
        Promise(f"{about}: recall", f"≥ {RECALL}", f"{score.recall:.2f}", score.recall >= RECALL, n),
        Promise(
            f"{about}: precision",
            f"≥ {PRECISION}",
            f"{score.precision:.2f}",
            score.precision >= PRECISION,
            score.right + len(score.wrong),
        ),
        Promise(f"{about}: injections kept", "0", f"{injections}", injections == 0, score.labels["injection"]),
    ]


def report_of(score: Score) -> dict[str, object]:
    """Return the figures without any text of the set."""
    return {
        "recall": round(score.recall, 3),
        "precision": round(score.precision, 3),
        "facts": score.facts.total(),
        "found": score.found.total(),
        "right": score.right,
        "wrong": len(score.wrong),
        "neutral": score.neutral,
        "superseded": [score.superseded, score.corrections],
        "noted_in_history": [score.noted, score.corrections],
        "kinds": {kind: [score.found[kind], n] for kind, n in sorted(score.facts.items())},
        "kept": {kind: [score.kept[kind], n] for kind, n in sorted(score.labels.items())},
    }


def show_score(half: Half, score: Score) -> None:
    title = f"{half}: recall {score.recall:.2f}, precision {score.precision:.2f}"
    table = Table(title=title, title_justify="left")
    for heading in ("what", "count", "n"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for kind, n in sorted(score.facts.items()):
        table.add_row(f"found: {kind}", str(score.found[kind]), str(n))
    table.add_row("bullets: right", str(score.right), str(score.right + len(score.wrong)))
    table.add_row("bullets: neutral, not judged", str(score.neutral), "")
    table.add_row("superseded", str(score.superseded), str(score.corrections))
    table.add_row("superseded, named in the history", str(score.noted), str(score.corrections))
    for kind, n in sorted(score.labels.items()):
        table.add_row(f"kept: {kind}", str(score.kept[kind]), str(n))
    Console().print(table)


def show_misses(score: Score) -> None:
    for title, lines in (("missed", score.missed), ("wrong", score.wrong), ("kept", score.kept_texts)):
        for line in lines:
            Console().print(f"{title}: {line}", highlight=False, markup=False)


def settings_of(given: argparse.Namespace) -> SummariserSettings:
    """Return the same settings that the daemon has under [consolidation]."""
    kind: Kind = given.summariser or ("openai" if given.endpoint else "command" if given.command else "embedded")
    return SummariserSettings(
        kind=kind,
        model=given.model,
        base_url=given.endpoint,
        key_file=given.key_file,
        command=tuple(shlex.split(given.command)),
        strict=not given.lax,
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--half", choices=[*get_args(Half), "both"], default="both")
    made.add_argument("--summariser", choices=get_args(Kind))
    made.add_argument("--endpoint", default="", help="the base URL of the model's endpoint")
    made.add_argument("--model", default="")
    made.add_argument("--key-file", type=Path)
    made.add_argument("--command", default="", help="the program of a command summariser, as one shell-quoted line")
    made.add_argument("--lax", action="store_true", help="the endpoint does not support a JSON schema")
    made.add_argument("--json", action="store_true", help="print the figures as JSON")
    made.add_argument(
        "--misses", action="store_true", help="print what was missed; of the held-out half only with --half held_out"
    )
    return made


async def measure(halves: Sequence[Half], settings: SummariserSettings) -> dict[Half, Score]:
    summariser = make_summariser(settings)
    try:
        return {half: await consolidate(load_half(half), summariser) for half in halves}
    finally:
        await summariser.aclose()


def main() -> None:
    given = parser().parse_args()
    halves: tuple[Half, ...] = HALVES if given.half == "both" else (given.half,)
    settings = settings_of(given)
    scores = anyio.run(measure, halves, settings)
    name = f"{settings.kind} summariser"
    promises = [promise for half, score in scores.items() for promise in promises_of(half, score, name)]
    reports = {half: report_of(score) for half, score in scores.items()}
    if given.json:
        print(json.dumps({"halves": reports, "promises": [asdict(promise) for promise in promises]}, indent=2))
    else:
        for half, score in scores.items():
            show_score(half, score)
        show_promises(promises)
    if given.misses:
        for half, score in scores.items():
            if half != "held_out" or given.half == "held_out":
                show_misses(score)
    nothing: dict[str, list[Figure]] = {}
    path = write("consolidation_quality", nothing, promises)
    if not given.json:
        print(path)


if __name__ == "__main__":
    main()
