"""A page as the tests read it: whether its tags nest, its text and its attributes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import ClassVar


class Document(HTMLParser):
    """Checks that tags nest and attributes are given once, and collects the tags and the text outside styles."""

    VOID: ClassVar[frozenset[str]] = frozenset({"meta"})
    UNREAD: ClassVar[frozenset[str]] = frozenset({"style"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in self.UNREAD:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.texts))

    def count(self, tag: str, style: str) -> int:
        """How many tags of this name have this class."""
        return sum(name == tag and style in (attrs.get("class") or "").split() for name, attrs in self.tags)
