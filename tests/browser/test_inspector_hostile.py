"""Hostile text in every field that an agent or a program can write: nothing runs, and no element is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sandboxd.client import Client
from scripts.browser import InspectorTab
from tests.browser.conftest import PATIENCE_MS
from tests.browser.told_session import orchestration, post
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine
expect.set_options(timeout=PATIENCE_MS)

SESSION = "hostile"
HOME = f"#/tenants/default/sessions/{SESSION}"
HIT = "window.hit=1"
OVERRIDE = "\u202e"
HOSTILE = (
    f"<script>{HIT}</script><img src=x onerror='{HIT}'><svg onload='{HIT}'></svg><iframe srcdoc='<script>{HIT}"
    f"</script>'></iframe><a href='javascript:{HIT}'>x</a><style>*{{display:none}}</style>"
    f"<object data='javascript:{HIT}'></object>]]>--></textarea></title>{OVERRIDE}txt.exe\u2066\u200b"
)
MARKDOWN = (
    f"# {HOSTILE}\n\n- {HOSTILE}\n\n[link](javascript:{HIT}) ![image](http://127.0.0.1:9/x.png) "
    f"[data](data:text/html,<script>{HIT}</script>) <javascript:{HIT}> [mixed](JaVaScRiPt:{HIT})\n\n"
    f"| {HOSTILE} | b |\n|---|---|\n| {HOSTILE} | `{HOSTILE}` |\n\n```html\n{HOSTILE}\n```\n\n> {HOSTILE}\n\n"
    f"[x]: javascript:{HIT}\n[x]\n\n<div onclick='{HIT}'>click</div>\n"
)
LONG = "A" * 1_000_000
VIEWS = (
    "#/",
    "#/sessions",
    "#/search?q=onerror",
    f"#/search?q={OVERRIDE}%3Cscript%3E",
    f"{HOME}/timeline",
    f"{HOME}/memory/session/NOTES.md",
    f"{HOME}/memory/session/NOTES.md?from=1&to=2",
    f"{HOME}/memory/user/USER.md",
    f"{HOME}/memory/artifacts/call-1",
    f"{HOME}/files?path=/workspace/hostile.html",
    f"{HOME}/files",
    f"{HOME}/processes",
    f"{HOME}/agents",
    f"{HOME}/copies",
    f"#/tenants/{HOSTILE.replace('/', '')}/sessions/{SESSION}",
    f"{HOME}/memory/session/%3Cscript%3E{HIT}%3C%2Fscript%3E",
    f"{HOME}/timeline?entry=<img src=x onerror={HIT}>",
)
_FOUND = """() => ({
  hit: window.hit,
  made: [...document.body.querySelectorAll(
    'script, iframe, object, embed, img, style, base, form[action], [onclick], [onerror], [onload]'
  )].map((element) => element.outerHTML.slice(0, 200)),
  links: [...document.querySelectorAll('a')].map((link) => link.protocol)
    .filter((scheme) => !['http:', 'https:', 'mailto:'].includes(scheme)),
  hidden: /[\\u202a-\\u202e\\u2066-\\u2069\\u200b]/.test(document.body.textContent),
  longest: Math.max(0, ...[...document.querySelectorAll('body *')].flatMap((element) => [...element.childNodes])
    .filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.length)),
})"""


@pytest.fixture(scope="module", autouse=True)
def told(daemon: RunningDaemon, client: Client) -> Iterator[None]:
    client.ensure_sandbox(SESSION, user="mallory", labels={"note": "<b>bold</b>"})
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": HOSTILE},
        {"role": "assistant", "content": MARKDOWN},
        {"role": "assistant", "content": [{"type": "text", "text": HOSTILE}, tool_call()], "model": HOSTILE},
        {"role": "toolResult", "toolCallId": HOSTILE, "toolName": HOSTILE, "content": HOSTILE},
        {"role": "user", "content": [{"type": HOSTILE, "strange": HOSTILE}, {"content": HOSTILE}], HOSTILE: HOSTILE},
        {"role": "user", "content": LONG},
    ]
    client.append_turn(SESSION, messages, {"input": 10, "output": 1})
    client.write_memo(SESSION, "NOTES.md", "before\n")
    client.write_memo(SESSION, "NOTES.md", MARKDOWN, actor="<b>me</b>", reason="<img src=x onerror=1>")
    client.write_memo("mallory", "USER.md", f"{MARKDOWN}\n{'B' * 200_000}\n", scope="user")
    client.write_artifact(SESSION, "call-1", f"{HOSTILE}\n{LONG}")
    client.write_file(SESSION, "/workspace/hostile.html", f"{HOSTILE}\n{LONG}".encode())
    client.exec(SESSION, ["touch", f"/workspace/{HOSTILE.replace('/', '_')[:200]}"])
    client.exec(SESSION, ["touch", f"/workspace/{OVERRIDE}txt.exe"])
    client.exec(SESSION, ["sh", "-c", f"printf '%s' \"$0\"; : {HOSTILE.replace(chr(39), '')!r}", HOSTILE])
    client.start_process(SESSION, ["printf", "%s\\n\\033]0;title\\007\\033[31m%s", HOSTILE, "A" * 100_000])
    envelope = {"type": HOSTILE, "at": HOSTILE, "data": {HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]}, "title": HOSTILE}
    post(daemon.socket, f"/v1/tenants/default/sessions/{SESSION}/trace", {"envelopes": [envelope]})
    agent = {"displayName": HOSTILE, "role": HOSTILE, "status": HOSTILE, "prompt": HOSTILE, "payload": HOSTILE}
    events = [
        {"type": HOSTILE, "agentId": HOSTILE, **agent},
        {"type": "agent_spawned", "agentId": "__proto__", "parentAgentId": "constructor", **agent},
        {"type": "message", "from": HOSTILE, "to": "__proto__", "text": {"a": HOSTILE}},
    ]
    post(daemon.socket, orchestration(SESSION, "events"), {"events": events})
    yield
    client.destroy_sandbox(SESSION)


def tool_call() -> dict[str, object]:
    return {"type": "toolCall", "id": HOSTILE, "name": HOSTILE, "arguments": {HOSTILE: HOSTILE, "long": LONG}}


def check(page: Page, where: str) -> None:
    found = page.evaluate(_FOUND)
    assert found["hit"] is None, where
    assert found["made"] == [], where
    assert found["links"] == [], where
    assert not found["hidden"], where
    assert found["longest"] < 100_000, where


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_runs_and_no_element_is_made(tab: InspectorTab, view: str) -> None:
    page = tab.open(view)
    expect(page.locator("main h1")).to_be_visible()
    expect(page.get_by_text("Loading")).to_have_count(0)
    check(page, view)
    # A session that does not exist is a 404, which the browser reports as an error of its own.
    tab.problems[:] = [problem for problem in tab.problems if "status of 4" not in problem]


def test_every_entry_of_the_timeline_shows_its_details_as_text(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/timeline")
    entries = page.get_by_role("listbox")
    expect(page.get_by_role("option").first).to_be_visible()
    amount = int(page.get_by_role("option").first.get_attribute("aria-setsize") or 0)
    assert amount > 10
    entries.focus()
    entries.press("Home")
    for place in range(1, amount + 1):
        expect(page.locator("[role=option][aria-selected=true]")).to_have_attribute("aria-posinset", str(place))
        expect(page.locator(".details-pane[aria-busy]")).to_have_count(0)
        page.get_by_text("Every field").click()
        check(page, f"entry {place}")
        entries.focus()
        entries.press("ArrowDown")


def test_an_override_of_the_direction_is_shown_as_its_name(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/files")
    expect(page.get_by_role("navigation", name="Workspace")).to_contain_text("⟨U+202E⟩txt.exe")


def test_a_line_of_a_megabyte_is_cut_until_it_is_asked_for(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/memory/artifacts/call-1")
    text = page.get_by_role("region", name="Artifact call-1")
    expect(text).to_contain_text("AAAA")
    assert text.evaluate("(element) => element.textContent.length") < 70_000
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("button", name="Show all")).to_have_count(0)
    assert text.evaluate("(element) => element.textContent.length") > 1_000_000


def test_a_process_prints_markup_and_control_sequences_as_text(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/processes/p1")
    expect(page.get_by_role("log")).to_contain_text("onerror")
    expect(page.get_by_role("log")).not_to_contain_text("title\u0007")
    check(page, "output")


def test_links_of_markdown_lead_only_to_the_web(tab: InspectorTab, client: Client) -> None:
    client.write_memo(SESSION, "LINKS.md", f"[good](https://example.org/a_(b)) [bad](javascript:{HIT}) mailto:x@y.z\n")
    page = tab.open(f"{HOME}/memory/session/LINKS.md")
    links = page.locator(".document-text a")
    expect(links).to_have_count(1)
    expect(links).to_have_attribute("href", "https://example.org/a_(b)")
    expect(links).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(page.locator(".document-text")).to_contain_text(f"[bad](javascript:{HIT})")
