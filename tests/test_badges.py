"""The badges of the README say what pyproject.toml and the tests say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_badges_are_true() -> None:
    spec = importlib.util.spec_from_file_location("badges", ROOT / "tools" / "badges.py")
    assert spec is not None
    assert spec.loader is not None
    badges = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(badges)
    made = badges.make_badges()
    assert {path.name: path.read_text(encoding="utf-8") for path in badges.FOLDER.glob("*.svg")} == made
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in made:
        assert f"(docs/images/badges/{name})" in readme
