"""Lets pages that are written for GitHub read the same on the site, whose Markdown is stricter.

A list may follow a paragraph without an empty line, and what stands inside <details> is Markdown.
"""

from __future__ import annotations

import re
from typing import Any

_LIST = re.compile(r"(- |1\. )\S")
_ITEM = re.compile(r"\s*([-*] |\d+\. )")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs with the text of each page."""
    lines: list[str] = []
    paragraph: list[str] = []  # the lines above, back to the last empty one
    fence = ""
    for line in markdown.splitlines():
        mark = re.match(r"\s*(```+)", line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        elif not fence:
            if _LIST.match(line) and paragraph and not _ITEM.match(paragraph[0]):
                lines.append("")
                paragraph = []
            line = line.replace("<details>", '<details markdown="1">')
        paragraph = [*paragraph, line] if line.strip() else []
        lines.append(line)
    return "\n".join(lines) + "\n"
