"""Write the badges of the README from pyproject.toml and tests/: python tools/badges.py. A test compares them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images" / "badges"
#: The width of a character of the font, and the margin on each side of a text.
_WIDTH, _MARGIN = 6.6, 6.0
_TEST = re.compile(r"^\s*(?:async )?def test_", re.MULTILINE)


def make_badges() -> dict[str, str]:
    """Make each badge, by the name of its file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    tests = sum(len(_TEST.findall(path.read_text(encoding="utf-8"))) for path in (ROOT / "tests").rglob("test_*.py"))
    texts = {
        "licence": ("licence", project["license"]),
        "python": ("Python", f"{versions[0]} to {versions[-1]}"),
        "tests": ("test functions", f"over {tests // 1_000},000"),
    }
    if "Typing :: Typed" in project["classifiers"]:
        texts["typed"] = ("types", "mypy --strict")
    return {f"{name}.svg": draw_badge(*parts) for name, parts in texts.items()}


def draw_badge(label: str, value: str) -> str:
    """Draw a label and a value, side by side."""
    left, right = (len(text) * _WIDTH + 2 * _MARGIN for text in (label, value))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="20" role="img" '
        f'aria-label="{label}: {value}">\n'
        f'<rect width="{left:.0f}" height="20" fill="#444"/>'
        f'<rect x="{left:.0f}" width="{right:.0f}" height="20" fill="#1a6b54"/>\n'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2:.0f}" y="14">{label}</text>'
        f'<text x="{left + right / 2:.0f}" y="14">{value}</text></g>\n</svg>\n'
    )


def main() -> None:
    """Write all badges."""
    FOLDER.mkdir(exist_ok=True)
    for name, badge in make_badges().items():
        (FOLDER / name).write_text(badge, encoding="utf-8")


if __name__ == "__main__":
    main()
