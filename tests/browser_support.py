"""What the tests of pages in a real browser share: the browser, and a visit that notes what a page does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="the browser test needs a Chromium on the path")

#: A browser asks for nothing by itself with these.
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start a browser that asks for nothing by itself."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=CHROMIUM, headless=True, args=QUIET)
        yield opened
        opened.close()


class Visit:
    """A page at one width in one scheme, and everything that it asked for or complained about."""

    def __init__(self, browser: Any, width: int, scheme: str, **settings: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, **settings)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
