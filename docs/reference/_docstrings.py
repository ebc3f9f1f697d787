"""Reads this project's compact docstrings for the API reference.

The code writes "name : what it is", without a type, because the signature has the type. NumPy's form would take that
text for the type. Before the docstrings are parsed, each such item becomes "name" with the text below it; "a, b : text"
becomes one item each; prose in or after a section becomes what it is; Sphinx roles and the names of pages become
links, where the site has the target. Formulas become plain text and tables stay as they are typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from griffe import Docstring, Extension, GriffeLoader, Module, Object

SECTIONS = {"Parameters", "Attributes", "Returns", "Raises", "Notes"}
ITEM = re.compile(r"(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*) :\s+(?P<text>\S.*)")
PAGE = re.compile(r"\bdocs/(?P<name>[\w-]+)\.md\b")
ROLE = re.compile(r":(?P<role>\w+):`(?P<text>[^`]+)`")
TABLE = re.compile(r"^ *={4,}[= ]*\n(?:.+\n)+? *={4,}[= ]*\n(?:.+\n)+? *={4,}[= ]*$", flags=re.MULTILINE)
FORMULA = re.compile(r"^(?P<indent> *)\.\. math:: *(?P<text>.*(?:\n(?P=indent) +.*)*)", flags=re.MULTILINE)
SIGNS = {"alpha": "α", "chi": "χ", "delta": "δ", "epsilon": "ε", "gamma": "γ", "lambda": "λ", "mu": "μ", "pi": "π"}
SIGNS |= {"sigma": "σ", "theta": "θ", "varphi": "φ", "ell": "ℓ", "Omega": "Ω", "Phi": "Φ", "ge": "≥", "le": "≤"}
SIGNS |= {"sum": "Σ", "int": "∫", "nabla": "∇", "circ": "∘", "sim": "∼", "lfloor": "⌊", "rfloor": "⌋"}
SIGNS |= {"langle": "⟨", "rangle": "⟩", "left": "", "right": "", "quad": "  ", "qquad": "  "}
SIGNS |= {word: word for word in ("cos", "sin", "ln", "max", "min", "sup", "Pr")}
SHAPES = {"frac", "tfrac", "sqrt"}


class CompactDocstrings(Extension):
    """Rewrites every docstring of a package once it is loaded."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: Any) -> None:
        del loader
        for thing in _documented(pkg):
            docstring = thing.docstring
            assert isinstance(docstring, Docstring)
            docstring.value = with_links(standard(typed(docstring.value)), thing, pkg)


def _documented(thing: Object) -> Iterator[Object]:
    if thing.docstring is not None:
        yield thing
    for member in thing.members.values():
        if not member.is_alias:
            yield from _documented(member)  # type: ignore[arg-type]


def typed(text: str) -> str:
    """Formulas as plain text, and tables as they are typed: no script is needed to show them."""

    def formula(match: re.Match[str]) -> str:
        return "\n".join(f"{match['indent']}    {plain(line.strip())}" for line in match["text"].splitlines())

    def table(match: re.Match[str]) -> str:
        return "\n".join(f"    {line}" for line in match[0].splitlines())

    return FORMULA.sub(formula, TABLE.sub(table, text))


def plain(formula: str) -> str:
    """A formula of LaTeX in characters; a sign that is not known here is an error."""
    formula = formula.replace(r"\{", "⦃").replace(r"\}", "⦄").replace(r"\|", "‖")
    formula = re.sub(r"\\(?:mathrm|text)\{([^{}]*)\}", r"\1", re.sub(r"\\[,;: ]", " ", formula))
    formula = re.sub(r"\\hat (\w)", "\\1\u0302", re.sub(r"\\bar (\w)", "\\1\u0304", formula))
    formula = re.sub(r"\\([A-Za-z]+)(?=([A-Za-z\\])?)", _sign, formula)
    before = ""
    while before != formula:  # from the innermost braces outwards
        before = formula
        formula = re.sub(r"([_^])\{([^{}]*)\}", lambda at: at[1] + _bracketed(at[2]), formula)
        formula = re.sub(r"\\sqrt(?: (\w)|\{([^{}]*)\})", lambda of: f"√{_bracketed(of[1] or of[2])}", formula)
        formula = re.sub(r"(ln )?\\(t?)frac(?:\{([^{}]*)\}|(\w))(?:\{([^{}]*)\}|(\w))", _fraction, formula)
    return re.sub(r"([⟨⌊]) +| +([⟩⌋])", r"\1\2", formula).replace("⦃", "{").replace("⦄", "}").strip()


def _sign(found: re.Match[str]) -> str:
    if found[1] in SHAPES:
        return found[0]
    sign = SIGNS[found[1]]
    return f"{sign} " if sign.isascii() and sign.isalpha() and found[2] else sign


def _fraction(found: re.Match[str]) -> str:
    quotient = f"{_bracketed(found[3] or found[4])}/{_bracketed(found[5] or found[6])}"
    return f"ln({quotient})" if found[1] else f"({quotient})" if found[2] else quotient


def _bracketed(text: str) -> str:
    return text if re.fullmatch(r"\w+|√\(.*\)", text) else f"({text})"


def standard(text: str) -> str:
    """The docstring in NumPy's own form."""
    opening, sections = _split(text.splitlines())
    parts: list[str] = []
    for name, lines in sections:
        if name == "Returns":
            body = [":", *(f"    {line}" if line else "" for line in lines)]  # the type is the signature's
        elif name in ("Parameters", "Attributes"):
            body, prose = _items(lines)
            opening += ["", *prose]
        elif name == "Notes":
            opening += ["", *lines]
            continue
        else:
            body = lines
        parts += ["", name, "-" * len(name), *body]
    return "\n".join([*opening, *parts]).strip()


def _split(lines: list[str]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """What stands before the sections, and each section's name and lines."""
    opening: list[str] = []
    sections: list[tuple[str, list[str]]] = []
    place = 0
    while place < len(lines):
        underlined = place + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[place + 1])
        if underlined and lines[place] not in SECTIONS:
            raise ValueError(f"unknown section in a docstring: {lines[place]!r}")
        if underlined:
            sections.append((lines[place], []))
            place += 2
            continue
        (sections[-1][1] if sections else opening).append(lines[place])
        place += 1
    return opening, [(name, "\n".join(body).strip("\n").splitlines()) for name, body in sections]


def _items(lines: list[str]) -> tuple[list[str], list[str]]:
    """The items in NumPy's form, one a name, and the paragraphs that are no item."""
    found: list[tuple[list[str], list[str]]] = []
    prose: list[str] = []
    into = prose
    for line in lines:
        item = ITEM.fullmatch(line)
        if item:
            into = [f"    {item['text']}"]
            found.append((item["names"].split(", "), into))
        elif line and not line.startswith(" "):
            into = prose
            into.append(line)
        else:
            into.append(line)
    return [line for names, text in found for line in _one_a_name(names, text)], prose


def _one_a_name(names: list[str], text: list[str]) -> Iterator[str]:
    """Names that share a text: the first has it, and says with whom."""
    first, *others = names
    together = ", ".join(f"`{name}`" for name in names)
    yield first
    yield from [f"    {together}: {text[0].lstrip()}", *text[1:]] if others else text
    for name in others:
        yield name
        yield f"    See `{first}`."


def with_links(text: str, thing: Object, package: Module) -> str:
    """Names of pages, and Sphinx roles, as links; optional ones: a name that is on no page stays code."""

    def link(match: re.Match[str]) -> str:
        name = match["text"].lstrip("~")
        if match["role"] == "math":
            return f"`{plain(match['text'])}`"
        path = _find(name, thing, package)
        shown = f"<code>{name}</code>" if path else f"`{match['text']}`"
        return f'<autoref identifier="{path}" optional>{shown}</autoref>' if path else shown

    return ROLE.sub(link, PAGE.sub(r'<a href="../\g<name>.html">docs/\g<name>.md</a>', text))


def _find(name: str, thing: Object, package: Module) -> str | None:
    """The full path of a name as it is meant where it is written."""
    scopes = [thing.path, thing.parent.path if thing.parent else "", thing.module.path, package.path, ""]
    for scope in scopes:
        path = f"{scope}.{name}".strip(".")
        if not path.startswith(f"{package.path}."):
            continue
        try:
            member = package[path.removeprefix(f"{package.path}.")]
        except KeyError:
            continue
        return str(member.canonical_path)
    return None
