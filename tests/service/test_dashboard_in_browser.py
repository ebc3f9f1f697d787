"""The dashboard in a real browser: light, dark, phone, keyboard only, names for screen readers, nothing fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from browser_scripts import CONTRAST
from browser_support import Visit, needs_chromium, open_browser
from service_support import make_query, open_service, serve, start_session, write_policy

from scoreshield.service.answers import Payer
from scoreshield.service.core import Service
from scoreshield.service.dashboard import facts
from scoreshield.service.embedding import hash_texts

pytest.importorskip("playwright.sync_api", reason="the browser test needs the Python package playwright")
pytestmark = needs_chromium

PASSWORD = "a quiet lake at noon"
TEXTS = [f"Letter {place} about {('cough', 'fever', 'headache', 'knee')[place % 4]}" for place in range(120)]
PAGES = [
    "",
    "/collections/letters",
    "/collections/docs/search",
    "/collections/docs/search?action=matches",
    "/keys",
    "/reports",
]
PAGES += ["/events", "/password", "/nothing"]

# Controls, tables and pictures without a name for screen readers.
NAMELESS = """() => {
  const controls = 'a, button, input:not([type=hidden]), select, textarea, summary, svg, table, nav';
  return [...document.querySelectorAll(controls)].filter(item => {
    const labels = item.labels ? [...item.labels].map(label => label.textContent.trim()).join(' ') : '';
    const region = item.tagName === 'TABLE' ? item.closest('[role=region]') : item;
    const by = (region.getAttribute('aria-labelledby') || '').split(' ').filter(Boolean)
      .map(name => document.getElementById(name)?.textContent.trim() || '').join(' ');
    const text = ['svg', 'TABLE', 'NAV'].includes(item.tagName) ? '' : item.textContent.trim();
    return !(region.getAttribute('aria-label') || by || labels || text);
  }).map(item => item.outerHTML.slice(0, 120));
}"""


def make_service(folder: Path) -> Service:
    """Make a service with two collections, of which one takes texts, some charges, keys and a report."""
    vectors = hash_texts(TEXTS, 64).astype(np.float32)
    names = np.array([f"L{place}" for place in range(len(TEXTS))])
    np.savez(folder / "letters.npz", embeddings=vectors, ids=names, text=np.array(TEXTS))
    (folder / "reports").mkdir()
    (folder / "reports" / "plan.html").write_text(
        "<!DOCTYPE html><title>A plan</title><style>p {color: rgb(1, 2, 3)}</style><p>A plan</p>"
        "<script>document.title = 'run'</script>",
        encoding="utf-8",
    )
    content = write_policy()
    content["installation"]["reports"] = "reports"
    content["collections"]["letters"] = {
        "file": "letters.npz",
        "ids": "ids",
        "fields": ["text"],
        "text": "text",
        "embedder": "hashing",
        "budget": {"epsilon": 400.0, "delta": 1e-6},
        "search": {"mechanism": "staircase", "epsilon": 8.0},
        "index": {"epsilon": 30.0},
    }
    content["callers"]["app"]["people"] = ["ada"]
    content["callers"]["app"]["collections"]["letters"] = {
        "actions": ["search", "index"],
        "allowance": {"epsilon": 200.0, "queries": 20},
    }
    service = open_service(folder, content)
    letters, docs = service.collections["letters"], service.collections["docs"]
    for seed in range(4):
        letters.search(Payer("app"), "search", [letters.read_text(f"question {seed}")])
    for seed in range(18):
        docs.search(Payer("app"), "search", [docs.read_query(make_query(seed))])
    service.people.create("ada", "admin", None, PASSWORD)
    service.keys.create("app")
    return service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    return make_service(tmp_path_factory.mktemp("dashboard"))


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with serve(service) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


class SignedInVisit(Visit):
    """A visit of someone who is signed in."""

    def __init__(
        self, browser: Any, service: Service, address: str, width: int, scheme: str = "light", **settings: Any
    ) -> None:
        super().__init__(browser, width, scheme, base_url=address, **settings)
        self.address = address
        self.context.add_cookies(
            [{"name": "scoreshield-session", "value": start_session(service, "ada"), "url": address}]
        )

    def check(self) -> None:
        """Check that nothing came from elsewhere, and that the browser has no complaint but a missing page."""
        assert {urlsplit(url).netloc for url in self.requests} == {urlsplit(self.address).netloc}
        assert [text for text in self.complaints if "404" not in text] == []


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (390, "dark"), (1280, "light"), (1280, "dark")])
def test_pages_read_well(width: int, scheme: str, browser: Any, service: Service, address: str) -> None:
    """No page scrolls sideways, has pale text or a control without a name, or complains."""
    entry = service.collections["letters"].account.ledger.entries()[0].hash
    with SignedInVisit(browser, service, address, width, scheme) as visit:
        for path in (*PAGES, f"/collections/letters/entries/{entry}"):
            visit.page.goto(f"/dashboard{path}")
            visit.page.evaluate("document.querySelectorAll('details').forEach(item => { item.open = true; })")
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert visit.page.evaluate(NAMELESS) == [], path
            contrasts = visit.page.evaluate(CONTRAST)
            assert len(contrasts) > 5
            assert [pair for pair in contrasts if pair[1] < 4.5] == [], path
            assert visit.page.locator("h1").count() == 1
            assert visit.page.locator("main").count() == 1
            assert visit.page.title().endswith("ScoreShield")
        visit.page.goto("/dashboard/collections/letters")
        chart = visit.page.locator("svg.chart")
        assert chart.bounding_box()["width"] >= 280
        line = visit.page.evaluate("getComputedStyle(document.querySelector('svg.chart .line path')).stroke")
        assert line.startswith("rgb")  # the style sheet colours it, although the page has no style attribute
        visit.check()


def test_meters_have_names_and_values(browser: Any, service: Service, address: str) -> None:
    with SignedInVisit(browser, service, address, 1280) as visit:
        visit.page.goto("/dashboard")
        meter = visit.page.get_by_role("meter", name="Budget of docs that is left")
        assert meter.get_attribute("aria-valuetext") == "2 of epsilon 20 left, 18 spent"
        assert meter.get_attribute("aria-valuenow") == "10"
        width = "document.querySelector('svg.meter %s').getBoundingClientRect().width"
        share = visit.page.evaluate(f"{width % '.left'} / {width % '.track'}")
        assert share == pytest.approx(0.1, abs=0.01)


def focus_by_tab(page: Any, role: str, name: str, most: int = 60) -> None:
    """Press the tab key until the control of this role and name has the focus, which must be visible."""
    wanted = page.get_by_role(role, name=name, exact=True).first
    for _ in range(most):
        page.keyboard.press("Tab")
        if wanted.evaluate("item => item === document.activeElement"):
            outline = wanted.evaluate("item => getComputedStyle(item).outlineStyle")
            assert outline != "none", "the focus cannot be seen"
            return
    raise AssertionError(f"The tab key does not reach {name}.")


def test_keyboard_from_sign_in_to_an_answer(browser: Any, service: Service, address: str) -> None:
    """A person without a mouse signs in, opens a collection, asks, and reads the answer beside what it is worth."""
    with SignedInVisit(browser, service, address, 1280) as visit:
        visit.context.clear_cookies()
        page = visit.page
        page.goto("/")
        assert page.url.endswith("/sign-in")
        page.wait_for_function("document.activeElement.id === 'name'")  # the field has the focus from the start
        page.keyboard.type("ada")
        page.keyboard.press("Tab")
        page.keyboard.type(PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url("**/dashboard")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        focus_by_tab(page, "link", "Search letters")
        page.keyboard.press("Enter")
        page.wait_for_url("**/letters/search")
        focus_by_tab(page, "textbox", "Question")
        before = service.collections["letters"].account.ledger.head()
        assert "costs ε 8" in page.inner_text("#cost")
        page.keyboard.type("a letter about fever")
        focus_by_tab(page, "button", "Spend ε 8 and search")
        page.keyboard.press("Enter")
        page.wait_for_selector("#answer tbody tr")
        assert page.locator("#answer tbody tr").count() == 10
        assert page.get_by_role("heading", name="What it is worth").is_visible()
        assert "15 more are left" in page.inner_text("#cost")
        after = service.collections["letters"].account.ledger.head()
        assert int(after.partition(":")[0]) == int(before.partition(":")[0]) + 1
        visit.check()


def count_entries(service: Service, name: str) -> int:
    return int(service.collections[name].account.ledger.head().partition(":")[0])


def test_double_click_and_reload(browser: Any, service: Service, address: str) -> None:
    """With and without JavaScript, a double click is one charge, and a reload is none."""
    for has_script in (True, False):
        before = count_entries(service, "letters")
        with SignedInVisit(browser, service, address, 1280, java_script_enabled=has_script) as visit:
            page = visit.page
            page.goto("/dashboard/collections/letters/search")
            page.fill("#query", f"a question with script: {has_script}")
            page.dblclick("button:has-text('Spend')")
            page.wait_for_selector("#answer tbody tr")
            first = page.inner_text("#answer")
            if not has_script:
                page.reload()  # the browser sends the form again
                page.wait_for_selector("#answer tbody tr")
            else:
                page.click("button:has-text('Spend')")
                page.wait_for_load_state("networkidle")
            assert page.inner_text("#answer") == first
        assert count_entries(service, "letters") == before + 1


def test_keys_without_script(browser: Any, service: Service, address: str) -> None:
    """A key is made and revoked without JavaScript; the button that copies is not shown then."""
    with SignedInVisit(browser, service, address, 390, java_script_enabled=False) as visit:
        page = visit.page
        page.goto("/dashboard/keys")
        page.select_option("#caller", "app")
        page.click("button:has-text('Create key')")
        text = page.get_by_label("New key", exact=True).input_value()
        prefix = service.keys.authenticate(text).prefix
        assert not page.locator("button[data-copy]").is_visible()
        page.locator("summary", has_text=f"Revoke key {prefix}").click()
        page.get_by_role("button", name=f"Revoke key {prefix} forever").click()
        page.wait_for_url("**/dashboard/keys")
        assert next(key for key in service.keys.list_keys() if key.prefix == prefix).revoked is not None


def test_copy_and_pages_of_entries(
    browser: Any, service: Service, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head can be copied, and older entries come without a new page."""
    monkeypatch.setattr(facts, "ENTRIES_PER_PAGE", 5)
    with SignedInVisit(browser, service, address, 1280) as visit:
        visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = visit.page
        page.goto("/dashboard")
        page.get_by_role("button", name="Copy Head of the hash chain of docs").click()
        page.get_by_role("button", name="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == service.collections["docs"].account.ledger.head()
        page.goto("/dashboard/collections/docs")
        page.evaluate("window.isSame = true")
        page.get_by_role("link", name="Older entries").click()
        page.get_by_role("link", name="Newest entries").wait_for()
        shown = page.locator("#entries tbody th").all_inner_texts()
        assert [int(re.sub(r"\D", "", text)) for text in shown] == [13, 12, 11, 10, 9]
        assert page.evaluate("window.isSame")
        visit.check()


def test_checks_find_planted_faults(browser: Any, service: Service, address: str) -> None:
    """The checks of names and of contrast find a field without a label, and pale text."""
    with SignedInVisit(browser, service, address, 1280) as visit:
        visit.page.goto("/dashboard/keys")
        visit.page.evaluate("document.querySelector('label[for=days]').remove()")
        visit.page.evaluate("document.querySelector('nav').removeAttribute('aria-label')")
        visit.page.evaluate("document.querySelector('[role=region]').removeAttribute('aria-labelledby')")
        assert len(visit.page.evaluate(NAMELESS)) == 3
        visit.page.evaluate("document.querySelector('h1').style.color = '#999999'")
        assert [text for text, ratio in visit.page.evaluate(CONTRAST) if ratio < 4.5] == ["Callers and keys"]


def test_a_report_runs_nothing(browser: Any, service: Service, address: str) -> None:
    """A report keeps its styles, and its scripts do not run."""
    with SignedInVisit(browser, service, address, 1280) as visit:
        visit.page.goto("/dashboard/reports")
        visit.page.get_by_role("link", name="plan.html").click()
        visit.page.wait_for_url("**/plan.html")
        assert visit.page.title() == "A plan"
        assert visit.page.evaluate("getComputedStyle(document.querySelector('p')).color") == "rgb(1, 2, 3)"
        assert re.search("script", " ".join(visit.complaints))  # the browser says that it did not run one


def test_password_by_keyboard(browser: Any, service: Service, address: str) -> None:
    """A person changes the password without a mouse, stays signed in, and signs in by the new one."""
    service.people.create("eve", "reader", [], PASSWORD)
    with SignedInVisit(browser, service, address, 390, "dark") as visit:
        visit.context.clear_cookies()
        cookie = {"name": "scoreshield-session", "value": start_session(service, "eve"), "url": address}
        visit.context.add_cookies([cookie])
        page = visit.page
        page.goto("/dashboard")
        focus_by_tab(page, "link", "Password")
        page.keyboard.press("Enter")
        page.wait_for_url("**/password")
        focus_by_tab(page, "textbox", "Password that you have now")
        for text in (PASSWORD, "another quiet lake", "another quiet lake"):
            page.keyboard.type(text)
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**/password?changed=yes")
        assert "Your other sessions have ended" in page.get_by_role("status").inner_text()
        visit.check()
    assert service.people.sign_in("eve", "another quiet lake", "")
