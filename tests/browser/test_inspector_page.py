"""The inspector's page in a browser, over a daemon with real sandboxes: what each view shows, and what it can do."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from sandboxd.client import Client
from scripts.browser import PHONE, InspectorTab, InspectorWindow, open_window
from tests.browser.conftest import PATIENCE_MS
from tests.browser.told_session import HOME, SESSION, VIEWS, tell
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module", autouse=True)
def told(daemon: RunningDaemon, client: Client) -> Iterator[None]:
    tell(client, daemon.socket)
    yield
    for sandbox in client.list_sandboxes():
        client.destroy_sandbox(sandbox.session)


def entry(page: Page, text: str) -> None:
    """Select the newest entry of the timeline whose title has this text, wherever the list is."""
    page.get_by_label("Filter by title").fill(text)
    page.get_by_role("option").filter(has_text=text).last.click()


def test_the_overview_shows_sandboxes_health_and_live_figures(tab: InspectorTab) -> None:
    page = tab.open("#/")
    expect(page.get_by_role("row").filter(has_text=SESSION)).to_contain_text("ready")
    expect(page.locator(".card", has_text="Engine")).to_contain_text("docker")
    expect(page.locator(".card", has_text="memo.db")).to_contain_text("works")
    for title in ("CPU", "Memory", "Disk"):
        expect(page.get_by_role("img", name=re.compile(rf"^{title}: [\d.]+"))).to_be_visible()
    expect(page.get_by_role("row").filter(has_text=SESSION)).to_contain_text("of 128 MiB")
    expect(page.locator("#live")).to_have_text("live")


def test_a_failure_names_its_cause_and_leads_to_its_entry(tab: InspectorTab) -> None:
    page = tab.open("#/")
    failure = page.locator(".failures li").filter(has_text="bytearray")
    expect(failure).to_contain_text("A limit was hit (memory)")
    failure.get_by_role("link").click()
    details = page.get_by_role("article", name="Details")
    expect(details).to_contain_text("failed")
    expect(details.locator(".facts")).to_contain_text("137")
    expect(details.locator(".facts")).to_contain_text("memory")


def test_the_timeline_shows_commands_with_output_and_messages_with_their_calls(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/timeline")
    details = page.get_by_role("article", name="Details")
    entry(page, "exit 3")
    expect(details.get_by_role("region", name="Command")).to_contain_text("echo to stderr >&2; exit 3")
    expect(details.get_by_role("region", name="Output")).to_contain_text("to stderr")
    entry(page, "I **measure** it.")
    expect(details.locator(".markdown strong")).to_have_text("measure")
    expect(details.locator(".call")).to_contain_text("wc -c plan.md")
    entry(page, "NOTES.md written, revision 2")
    details.get_by_role("link", name="What this write changed").click()
    expect(page.locator("table.diff .added .new")).to_have_text("- and sands it")


def test_new_events_appear_without_a_reload(tab: InspectorTab, client: Client) -> None:
    page = tab.open(f"{HOME}/timeline")
    expect(page.get_by_role("option").first).to_be_visible()
    client.exec(SESSION, "echo seen at once")
    expect(page.get_by_role("option").filter(has_text="echo seen at once")).to_be_visible()


def test_the_picture_moves_through_the_entries_and_zooms(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/timeline")
    expect(page.get_by_role("option").first).to_be_visible()
    picture = page.locator("canvas")
    picture.focus()
    picture.press("ArrowRight")
    note = page.locator("#picture-note")
    expect(note).to_contain_text("Entry 1 of")
    picture.press("ArrowRight")
    expect(note).to_contain_text("Entry 2 of")
    expect(page.locator("[role=option][aria-selected=true]")).to_have_attribute("aria-posinset", "2")
    before = picture.evaluate("(canvas) => canvas.toDataURL()")
    for key in ("+", "+"):
        picture.press(key)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert picture.evaluate("(canvas) => canvas.toDataURL()") != before
    by_time = page.get_by_role("button", name="By time")
    was = by_time.get_attribute("aria-pressed")
    by_time.click()
    expect(by_time).to_have_attribute("aria-pressed", "false" if was == "true" else "true")


def test_lanes_titles_and_failures_filter_the_timeline(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/timeline")
    amount = page.locator(".amount")
    expect(amount).to_have_text(re.compile(r"^\d+ entries$"))
    page.get_by_label("Failures only").check()
    expect(page.get_by_role("option")).to_have_count(2)
    page.get_by_label("Failures only").uncheck()
    page.get_by_label("Filter by title").fill("question 2")
    expect(amount).to_contain_text("1 of")
    page.get_by_role("button", name="User", exact=True).click()
    expect(amount).to_contain_text("0 of")


def test_tokens_of_turns_are_a_plot(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/timeline")
    plot = page.get_by_role("img", name="Tokens per turn: 4.8K tokens in, 600 out, in 3 turns")
    expect(plot).to_be_visible()
    expect(plot.locator(".bar")).to_have_count(3)


def test_a_document_is_rendered_with_its_history_and_where_it_is_shown(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/memory/session/NOTES.md")
    text = page.locator(".document-text")
    expect(text.locator("strong")).to_have_text("measures")
    expect(text.locator("table td code")).to_have_text("cut")
    expect(text.get_by_role("img", name="done")).to_be_visible()
    history = page.get_by_role("region", name="History", exact=True)
    expect(history).to_contain_text("colleague")
    expect(history).to_contain_text("heard in passing")
    shown = page.get_by_role("region", name="Shown in", exact=True)
    expect(shown.get_by_role("row").filter(has_text=SESSION)).to_contain_text("revision 2")
    expect(shown).to_contain_text("yes, after")


def test_a_restore_needs_a_confirmation_and_reaches_the_container(tab: InspectorTab, client: Client) -> None:
    client.write_memo(SESSION, "PLAN.md", "first\n")
    client.write_memo(SESSION, "PLAN.md", "second\n")
    page = tab.open(f"{HOME}/memory/session/PLAN.md")
    page.get_by_role("button", name="Restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert client.read_memo(SESSION, "PLAN.md").revision == 2
    page.get_by_role("button", name="Restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.locator(".document-text")).to_contain_text("first")
    expect(page.get_by_role("region", name="History", exact=True).get_by_role("row").nth(1)).to_contain_text(
        "inspector"
    )
    assert client.exec(SESSION, "cat memo/session/PLAN.md").stdout == "first\n"


def test_files_open_in_the_tree_as_text_bytes_and_pictures(tab: InspectorTab, client: Client) -> None:
    client.exec(SESSION, "printf 'a\\0b' > bytes.bin; head -c 400000 /dev/zero | tr '\\0' x > long.txt")
    page = tab.open(f"{HOME}/files")
    tree = page.get_by_role("navigation", name="Workspace")
    tree.locator("summary", has_text="src/").click()
    tree.locator("summary", has_text="app/").click()
    tree.get_by_role("link", name="main.py").click()
    expect(page.get_by_role("region", name="/workspace/src/app/main.py")).to_have_text("print(1)\n")
    tree.get_by_role("link", name="bytes.bin").click()
    expect(page.get_by_role("region", name="Bytes")).to_contain_text("61 00 62")
    tree.get_by_role("link", name="long.txt").click()
    page.get_by_role("button", name="Load the whole file").click()
    page.get_by_role("button", name="Show all").click()
    whole = page.get_by_role("region", name="/workspace/long.txt")
    expect(whole).not_to_contain_text("…")
    assert whole.evaluate("(element) => element.textContent.length") == 400_000


def test_a_process_shows_its_output_as_it_is_written(tab: InspectorTab, client: Client) -> None:
    process = client.start_process(SESSION, "echo before; read line; printf '\\033[31mred %s\\n' \"$line\"; exit 4")
    page = tab.open(f"{HOME}/processes/{process.id}")
    output = page.get_by_role("log")
    expect(output).to_contain_text("before")
    client.write_process(SESSION, process.id, "and after\n")
    expect(output.locator(".fg-1")).to_contain_text("red and after")
    expect(
        page.get_by_role("region", name="Processes").last.get_by_role("row").filter(has_text=process.id)
    ).to_contain_text("exit 4")


def test_the_terminal_runs_a_shell_and_can_be_left(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/terminal")
    expect(page.get_by_text("Connected to process")).to_be_visible()
    terminal = page.get_by_role("textbox", name=re.compile("^Terminal of"))
    expect(terminal).to_be_focused()
    expect(page.locator(".terminal .row").filter(has_text="$").first).to_be_visible()
    page.keyboard.type("echo answer $((6 * 7)); printf '\\033[32mgreen\\033[0m\\n'; stty size\n")
    expect(page.locator(".terminal .row").filter(has_text="answer 42")).to_be_visible()
    expect(page.locator(".terminal .fg-2", has_text="green").first).to_be_visible()
    page.keyboard.press("Shift+Escape")
    expect(page.get_by_role("link", name="Terminal")).to_be_focused()
    terminal.focus()
    page.keyboard.type("exit 7\n")
    expect(page.get_by_text("The shell ended with exit code 7.")).to_be_visible()
    expect(page.get_by_role("button", name="Open a new terminal")).to_be_visible()


def test_a_program_on_the_alternate_screen_leaves_the_shell_as_it_was(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/terminal")
    expect(page.locator(".terminal .row").filter(has_text="$").first).to_be_visible()
    page.keyboard.type("echo before; printf '\\033[?1049h\\033[2J\\033[3;5Halternate'; read x; printf '\\033[?1049l'\n")
    expect(page.locator(".terminal .row").nth(2)).to_have_text("    alternate")
    expect(page.locator(".terminal .row").filter(has_text="before")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.locator(".terminal .row").filter(has_text=re.compile("^before"))).to_be_visible()
    expect(page.locator(".terminal .row").filter(has_text=re.compile(r"^\s+alternate"))).to_have_count(0)
    page.keyboard.press("Control+d")


def test_a_snapshot_and_a_fork_are_made_and_listed(tab: InspectorTab, client: Client) -> None:
    page = tab.open(f"{HOME}/copies")
    page.get_by_role("button", name="Take a snapshot").click()
    page.get_by_label("Name (optional)").fill("before the cut")
    page.get_by_role("button", name="Take it").click()
    expect(
        page.get_by_role("region", name="Snapshots").last.get_by_role("row").filter(has_text="before the cut")
    ).to_be_visible()
    page.get_by_role("button", name="Fork this session").click()
    page.get_by_label("Name of the new session").fill("second-try")
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_role("link", name="second-try")).to_be_visible()
    assert client.exec("second-try", "cat greeting.txt").stdout == "hello\n"
    page.get_by_role("button", name=re.compile("^Remove the snapshot")).click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No snapshot")).to_be_visible()
    client.destroy_sandbox("second-try")


def test_search_finds_messages_documents_and_sessions_and_leads_to_them(tab: InspectorTab) -> None:
    page = tab.open("#/")
    page.keyboard.press("/")
    page.keyboard.type("question 3\n")
    found = page.get_by_role("region", name="Messages").get_by_role("link")
    expect(page.locator("mark").first).to_have_text("Question 3")
    found.first.click()
    expect(page.get_by_role("article", name="Details")).to_contain_text("Question 3: how long is the board?")
    page = tab.open("#/search?q=likes+tea")
    page.get_by_role("region", name="Documents").get_by_role("link", name="USER.md").click()
    expect(page.locator(".document-text")).to_contain_text("likes tea")
    page = tab.open(f"#/search?q={SESSION}")
    expect(page.get_by_role("region", name="Sessions").get_by_role("link", name=SESSION, exact=True)).to_be_visible()


def test_agents_and_their_mailboxes_are_a_graph(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/agents")
    graph = page.get_by_role("region", name="Graph of agents")
    expect(graph.locator(".agent")).to_have_count(3)
    expect(graph.locator(".edge.started")).to_have_count(2)
    expect(graph.locator(".edge.wrote")).to_have_text("✉ 1")
    graph.locator(".agent", has_text="cutter").click()
    expect(page).to_have_url(re.compile(r"/agents/cutter$"))
    expect(page.get_by_role("region", name="Agent", exact=True)).to_contain_text("Cut at 42 cm")


def test_artifacts_are_listed_and_shown_in_full(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/memory")
    page.get_by_role("link", name="call-7").click()
    expect(page.get_by_role("region", name="Artifact call-7")).to_contain_text("one of very many lines of a log")


def test_the_keyboard_moves_between_views_and_single_keys_can_be_turned_off(tab: InspectorTab) -> None:
    page = tab.open(f"{HOME}/timeline")
    expect(page.get_by_role("option").first).to_be_visible()
    page.keyboard.press("2")
    expect(page).to_have_url(re.compile(r"/memory$"))
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    page.keyboard.press("?")
    page.get_by_label("Shortcuts of one key are on").uncheck()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("o")
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    page.get_by_role("button", name="Keyboard shortcuts").click()
    page.get_by_label("Shortcuts of one key are on").check()


def test_the_theme_follows_the_system_until_one_is_chosen(tab: InspectorTab) -> None:
    page = tab.open("#/")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(colour)
    assert light != dark
    choose = page.get_by_role("button", name=re.compile("^Theme"))
    choose.click()
    assert page.evaluate(colour) == light
    choose.click()
    page.emulate_media(color_scheme="light")
    assert page.evaluate(colour) == dark
    choose.click()
    assert page.evaluate(colour) == light


def test_a_view_that_does_not_exist_leads_back(tab: InspectorTab) -> None:
    page = tab.open("#/nothing/here")
    page.get_by_role("link", name="Go to the overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_every_view_fits_the_width_of_a_phone(browser: Browser, daemon: RunningDaemon) -> None:
    with open_window(browser, daemon.socket, size=PHONE) as window:
        tab = window.tab()
        for view in VIEWS:
            page = tab.open(view)
            page.wait_for_load_state("load")
            expect(page.locator("main h1")).to_be_visible(timeout=PATIENCE_MS)
            expect(page.get_by_text("Loading")).to_have_count(0, timeout=PATIENCE_MS)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0], view
        assert tab.problems == []


def test_the_page_connects_again_after_the_daemon_was_killed(
    daemon: RunningDaemon, window: InspectorWindow, client: Client
) -> None:
    tab = window.tab()
    page = tab.open(f"{HOME}/timeline")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.get_by_role("option").first).to_be_visible()
    daemon.kill()
    expect(page.locator("#live")).to_have_text("not connected")
    daemon.start()
    expect(page.locator("#live")).to_have_text("live")
    client.exec(SESSION, "echo after the restart")
    expect(page.get_by_role("option").filter(has_text="echo after the restart")).to_be_visible()
    page.get_by_label("Filter by title").fill("echo to stderr")
    expect(page.get_by_role("option")).to_have_count(1)
    page.close()
