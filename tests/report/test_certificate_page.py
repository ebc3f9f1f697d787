"""The page of a certificate: whole, self-contained, safe, and saying what the text says."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from html_document import Document

import scoreshield as ss
from scoreshield import report
from scoreshield.errors import FileError, InvalidInput
from scoreshield.privacy.certificate import list_statements
from scoreshield.report import certificate_page

NOW = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
ROWS = np.random.default_rng(2).standard_normal((60, 8))
RELEASES = {
    "strong": lambda: ss.release_scores(ROWS, ROWS[0], epsilon=1, delta=1e-6),
    "moderate": lambda: ss.release_scores(ROWS, ROWS[0], epsilon=5, delta=1e-6),
    "weak": lambda: ss.release_scores(ROWS, ROWS[0], epsilon=15, delta=1e-6),
    "nothing": lambda: ss.release_index(ROWS, epsilon=30),
    "seeded": lambda: ss.release_scores(ROWS, ROWS[0], epsilon=1, delta=1e-6, rng=1),
    "radius": lambda: ss.release_gram(ROWS, epsilon=5, delta=1e-6, adjacency=ss.GramRadius(0.1), projection="none"),
    "top-k": lambda: ss.release_top_k(ROWS, ROWS[0], 3, epsilon=2),
}


def read(guarantee: Any, **settings: Any) -> Document:
    return Document(report.render_certificate_page(guarantee, now=NOW, **settings))


def squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\N{NO-BREAK SPACE}", " "))


@pytest.mark.parametrize("name", RELEASES)
def test_it_says_what_the_text_says(name: str) -> None:
    """Every statement and every warning of the certificate is on the page, and the verdict is its first line."""
    release = RELEASES[name]()
    page = squeeze(read(release).text)
    for statement in list_statements(release.guarantee):
        shown = statement.text
        if statement.label == "Verdict":
            shown = shown.removeprefix(f"{release.guarantee.verdict.capitalize()}.").strip()
        assert squeeze(shown) in page, statement.label
    for warning in release.guarantee.warnings:
        assert squeeze(warning[1:]) in page
    assert page.index(release.guarantee.verdict.capitalize()) < page.index("Key figures")
    assert "5:06" not in page.split("Key figures")[0]
    assert "4 March 2026, 05:06 UTC" in page


def test_a_release_and_its_guarantee_have_one_page() -> None:
    """A release gives the page of its guarantee: no released value is on it."""
    release = RELEASES["moderate"]()
    page = report.render_certificate_page(release, now=NOW)
    assert page == report.render_certificate_page(release.guarantee, now=NOW)
    assert not [value for value in release.noisy.tolist() if repr(value)[:9] in page]


def test_words_of_the_owner_are_escaped() -> None:
    """Texts and facts with tags, quotes and scripts stay texts."""
    evil = "<script>alert('x')</script>\"&"
    release = RELEASES["strong"]().annotate(dataset=evil, who=evil, why=evil)
    page = report.render_certificate_page(release, facts={evil: evil}, now=NOW)
    assert "<script" not in page
    document = Document(page)
    assert {tag for tag, _ in document.tags}.isdisjoint({"script", "link", "img", "iframe", "object", "base"})
    assert evil in document.text


def test_it_fetches_nothing() -> None:
    """No address of another place is on the page, but those of the names in a picture."""
    page = report.render_certificate_page(RELEASES["nothing"](), now=NOW)
    assert not re.search(r"(url\((?!#)|@import|src=|href=\"?http)", page)
    assert set(re.findall(r"https?://[^\"' )]+", page)) <= {"http://www.w3.org/2000/svg"}


def test_rates_are_rounded_up() -> None:
    """No figure is below what the guarantee allows."""
    guarantee = RELEASES["moderate"]().guarantee
    document = squeeze(read(guarantee).text)
    detected = 100 * guarantee.tpr_at(0.01)
    shown = [float(text) for text in re.findall(r"detects at most ([\d.]+) % of the changes", document)]
    assert len(shown) == 1
    assert detected <= shown[0] < detected + 0.01


def test_signs_need_no_colour() -> None:
    """Each verdict has a sign and a word of its own."""
    seen = {certificate_page._judge(word)[1:] for word in ("strong", "moderate", "weak", "hides practically nothing")}
    assert len(seen) == 4


def test_save(tmp_path: Path) -> None:
    """The file is written whole; a folder that is missing gives one sentence, and so does what is no guarantee."""
    path = tmp_path / "certificate.html"
    report.save_certificate_page(RELEASES["strong"](), path, facts={"SHA-256": "ab" * 32}, now=NOW)
    assert "ab" * 32 in Document(path.read_text()).text
    with pytest.raises(FileError, match="Cannot write"):
        report.save_certificate_page(RELEASES["strong"](), tmp_path / "none" / "x.html")
    with pytest.raises(InvalidInput, match="'certified' parameter of render_certificate_page must be a guarantee or a"):
        report.render_certificate_page({"epsilon": 1})  # type: ignore[arg-type]
