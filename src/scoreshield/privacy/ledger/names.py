"""Names of collections: one spelling each, so that one collection has one budget.

Names that look alike should not have two budgets. A name is made of printable ASCII characters and of letters of a
few scripts, which are not mixed. docs/accounting.md states the rules, and what they do not catch; each of them is one
function here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

from scoreshield import _validation
from scoreshield.errors import InvalidParameter

#: How ledgers of earlier versions named a collection that had no name; no new name may look like one.
FINGERPRINT = "hmac-sha256:"
_MOST = 200

#: Scripts that names may be written in. Others have letters that look like Latin ones (Cherokee, Lisu, Coptic ...).
_SCRIPTS = {"LATIN", "GREEK", "CYRILLIC", "HEBREW", "ARABIC", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"}
#: Latin letters beyond ASCII that alphabets of today use. Phonetic letters, small capitals and clicks look like others.
_LATIN = (
    ({*range(0xC0, 0x180)} - {0x131, 0x138, 0x149, 0x17F})  # without dotless i, kra, n after an apostrophe, long s
    | {0x18F, 0x259, 0x1A0, 0x1A1, 0x1AF, 0x1B0}  # schwa, Vietnamese O and U with horn
    | {*range(0x1CD, 0x1DD), *range(0x1E6, 0x1EC), *range(0x218, 0x21C)}  # Pinyin, Skolt Sami, Romanian
    | ({*range(0x1E00, 0x1EFA)} - {0x1E9C, 0x1E9D, 0x1E9F})  # without letters of medieval manuscripts
)
#: The length mark and the iteration marks of Japanese, and the iteration mark of Chinese characters.
_MARKS = frozenset("\u30fc\u309d\u309e\u30fd\u30fe\u3005")
#: Scripts that are written together: Unicode Technical Standard 39, "highly restrictive".
_TOGETHER = (
    {"LATIN", "CJK", "HIRAGANA", "KATAKANA"},
    {"LATIN", "CJK", "HANGUL"},
    {"LATIN", "CJK", "BOPOMOFO"},
)
#: Cyrillic and Greek letters that look like a Latin one or a digit, those of Unicode's list of confusable characters
#: included: a name of nothing else looks like a Latin name. Accents do not count.
_LIKE_LATIN = frozenset(
    "\u0430\u0441\u0435\u04bb\u0456\u0458\u043e\u0440\u0455\u0443\u0445\u0501\u051b\u051d\u0475\u04cf\u0432\u043c\u043d\u043a\u0442"
    "\u0410\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0423\u0425\u0417\u051a\u051c\u0474\u04c0"
    "\u03bf\u03b1\u03bd\u03b9\u03ba\u03c1\u03c5\u03c7\u03b3\u03b7\u03c9"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
    "\u042c\u0431\u0433\u0461\u04ae\u04af\u04bd\u04e0\u050c\ua644\ua647\u037f\u03c3\u03dc\u03f3\u03fa"
)


def normalise_name(name: Any) -> str:
    """Return the one spelling of a new name, or raise an error that says what is wrong with it."""
    if not isinstance(name, str):
        _validation.reject("dataset", "the collection's name, a string", name)
    composed = unicodedata.normalize("NFC", name)
    for is_so, must in _RULES:
        if not is_so(composed):
            raise InvalidParameter("dataset", f"must be a name {must}. Got {ascii(name)[:80]} instead.")
    return composed


def _has_a_length(name: str) -> bool:
    return 1 <= len(name) <= _MOST


def _has_plain_spaces(name: str) -> bool:
    return name == name.strip() and "  " not in name


def _has_plain_characters(name: str) -> bool:
    """Return whether every character is printable ASCII or a letter that stands by itself."""
    return all(_is_plain(character) for character in name)


def _is_plain(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    kind = unicodedata.category(character)
    if kind == "Lm":  # modifiers look like quotes, tones like full stops; others only make a letter longer
        return character in _MARKS
    if kind not in ("Lu", "Ll", "Lt", "Lo") or "FILLER" in unicodedata.name(character, "FILLER"):
        return False
    script = _script(character)
    if "SMALL CAPITAL" in unicodedata.name(character):
        return False
    return script in _SCRIPTS and (script != "LATIN" or ord(character) in _LATIN)


def _has_no_variants(name: str) -> bool:
    return unicodedata.normalize("NFKC", name) == name


def _has_one_script(name: str) -> bool:
    found = {_script(character) for character in name if character.isalpha()}
    return len(found) <= 1 or any(found <= together for together in _TOGETHER)


def _script(character: str) -> str:
    """Return the script of a letter: the first word of its Unicode name."""
    first = unicodedata.name(character).split()[0].partition("-")[0]
    return {"IDEOGRAPHIC": "CJK"}.get(first, first)


def _is_not_disguised(name: str) -> bool:
    letters = [character for character in unicodedata.normalize("NFD", name) if character.isalpha()]
    return not letters or not all(character in _LIKE_LATIN for character in letters)


def _is_not_a_fingerprint(name: str) -> bool:
    return not name.casefold().startswith(FINGERPRINT)


_RULES: tuple[tuple[Callable[[str], bool], str], ...] = (
    (_has_a_length, f"of 1 to {_MOST} characters"),
    (
        _has_plain_characters,
        "of letters of common alphabets and printable ASCII characters, without invisible ones or loose accents",
    ),
    (_has_plain_spaces, "without spaces at its ends and without two in a row"),
    (_has_no_variants, "without variant forms of characters, such as full-width letters"),
    (_has_one_script, "in one alphabet, since letters of another may look the same"),
    (_is_not_disguised, "that does not consist of Cyrillic or Greek letters that all look like Latin ones"),
    (_is_not_a_fingerprint, f"that does not start with {FINGERPRINT!r}, as those of earlier versions do"),
)
