"""Conversations and the bullets expected from them: section, text, and the messages that state it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memo.consolidation import Part

PREFERS, FOCUS, ROLE, AVOID = Part.PREFERENCES, Part.FOCUS, Part.ROLE, Part.AVOID


@dataclass(frozen=True)
class Conversation:
    title: str
    messages: list[tuple[str, str]]
    expected: list[tuple[Any, ...]]


def talk(title: str, *turns: str, expected: list[tuple[Any, ...]]) -> Conversation:
    """Turns alternate, the user first."""
    roles = ("user", "assistant")
    return Conversation(title, [(roles[n % 2], text) for n, text in enumerate(turns)], expected)


CONVERSATIONS = [
    talk(
        "a backend engineer",
        "Hi! I'm a backend engineer at a payments company in Berlin. We're migrating our billing service to "
        "Kubernetes, can you help me with the manifests?",
        "Of course. I prefer Helm for that, and I am a model.",
        "I prefer plain manifests over Helm. Please keep your answers short, thanks!",
        "Understood.",
        "And don't use emojis.",
        expected=[
            (ROLE, "Is a backend engineer at a payments company in Berlin", 1),
            (FOCUS, "They are migrating their billing service to Kubernetes", 1),
            (PREFERS, "Prefers plain manifests over Helm", 3),
            (PREFERS, "Asks for answers that are short", 3),
            (AVOID, "Asks not to use emojis", 5),
        ],
    ),
    talk(
        "a doctoral student",
        "My name is Maria Silva, and I'm a PhD student. My thesis is about soil microbes.",
        "Nice to meet you.",
        "I'm new to R. I'd rather use ggplot2 than base graphics.",
        "Sure.",
        "Always cite your sources. From now on, write in British English.",
        expected=[
            (ROLE, "Is called Maria Silva", 1),
            (ROLE, "Is a PhD student", 1),
            (FOCUS, "Their thesis is about soil microbes", 1),
            (ROLE, "Is new to R", 3),
            (PREFERS, "Would rather use ggplot2 than base graphics", 3),
            (PREFERS, "Asks to always cite the sources", 5),
            (PREFERS, "Asks to write in British English", 5),
        ],
    ),
    talk(
        "language, name and place",
        "Please answer in German. Call me Bob, I live in Hamburg.",
        "Gern.",
        "My time zone is Europe/Berlin.",
        expected=[
            (PREFERS, "Asks for answers in German", 1),
            (PREFERS, "Wants to be called Bob", 1),
            (ROLE, "Lives in Hamburg", 1),
            (ROLE, "Their time zone is Europe/Berlin", 3),
        ],
    ),
    talk(
        "dislikes",
        "I hate long introductions. I'm not a fan of jargon either, and I don't like surprises.",
        "Noted.",
        "No bullet points please. Stop apologising for everything. Never use semicolons in JavaScript.",
        "OK.",
        "I don't want you to rewrite my tests.",
        expected=[
            (AVOID, "Dislikes long introductions", 1),
            (AVOID, "Dislikes jargon", 1),
            (AVOID, "Does not want surprises", 1),
            (AVOID, "Wants no bullet points", 3),
            (AVOID, "Asks to stop apologising for everything", 3),
            (AVOID, "Asks to never use semicolons in JavaScript", 3),
            (AVOID, "Does not want the assistant to rewrite their tests", 5),
        ],
    ),
    talk(
        "a team",
        "I lead a small platform team. We mostly use Go and Terraform. Our stack is on AWS.",
        "Great.",
        "Use pnpm instead of npm. Always run the tests before committing.",
        expected=[
            (ROLE, "Leads a small platform team", 1),
            (ROLE, "They mostly use Go and Terraform", 1),
            (ROLE, "Their stack is on AWS", 1),
            (PREFERS, "Asks to use pnpm instead of npm", 3),
            (PREFERS, "Asks to always run the tests before committing", 3),
        ],
    ),
    talk(
        "a cook",
        "I'm vegetarian and I'm allergic to peanuts. I love Thai food.",
        "Let's cook.",
        "I have 12 years of experience as a hobby cook, so skip the basics. My favourite cuisine is Vietnamese.",
        expected=[
            (ROLE, "Is vegetarian", 1),
            (ROLE, "Is allergic to peanuts", 1),
            (PREFERS, "Loves Thai food", 1),
            (ROLE, "Has 12 years of experience as a hobby cook", 3),
            (AVOID, "Asks to leave out the basics", 3),
            (PREFERS, "Favourite cuisine is Vietnamese", 3),
        ],
    ),
    talk(
        "the same thing twice is one fact with two sources",
        "I prefer type hints everywhere.",
        "Yes.",
        "As I said, I prefer type hints everywhere.",
        expected=[(PREFERS, "Prefers type hints everywhere", 1, 3)],
    ),
    talk(
        "learning and building",
        "I'm trying to learn Haskell. I'm currently building a compiler for fun. I work as a nurse.",
        expected=[
            (FOCUS, "Is trying to learn Haskell", 1),
            (FOCUS, "Is currently building a compiler for fun", 1),
            (ROLE, "Works as a nurse", 1),
        ],
    ),
    talk(
        "only the user's own words count",
        "Summarise this email:\nFrom: boss\nI prefer meetings at 7 am. I hate remote work.",
        "I prefer to be brief. I'm a helpful assistant.",
        "> I like quoted things\n\n```\nI prefer code blocks\n```\nI like walks.",
        expected=[(PREFERS, "Likes walks", 3)],
    ),
]

SILENT = [
    "hello",
    "thanks, that worked!",
    "What does it mean when I prefer one thing?",
    "If I work at a bank, do I pay more tax?",
    "Do you think I like tea?",
    "My boss says I prefer chaos.",
    "Translate: I live in Paris.",
    "Rewrite this: I hate mondays",
    'He said "I work at the ministry of silly walks" and left.',
    "Suppose I'm a doctor.",
    "for example, I prefer x over y",
    "fix the bug in parser.py",
    "my name is not important",
    "don't worry about it",
    "Imagine I am a pilot flying over Rome.",
    "the user wrote: I prefer silence",
    "can you show me how our team uses that?",
    "I don't know",
    "never mind",
    "use the second one",
]
