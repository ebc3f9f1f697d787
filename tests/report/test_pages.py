"""What all pages share: their templates escape text, and a missing extra is one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scoreshield.errors import InvalidInput
from scoreshield.report import pages


@pytest.mark.parametrize("library", ["jinja2", "matplotlib"])
def test_missing_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without the extra raises one sentence that names it."""
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InvalidInput, match=r"^A page needs the 'report' extra: pip install 'scoreshield\[report\]'\.$"):
        pages.render_template("plan.html")


def test_light_import() -> None:
    """The modules of pages, and so the command line, load neither Jinja2 nor Matplotlib until a page is made."""
    code = (
        "import sys, scoreshield.cli, scoreshield.report.plan_page, scoreshield.report.audit_page;"
        "print([name for name in ('jinja2', 'matplotlib', 'pandas') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
