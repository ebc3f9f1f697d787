"""The rules for names of collections, each at its border."""

from __future__ import annotations

import pytest

import scoreshield as ss
from scoreshield.privacy.ledger import names
from scoreshield.privacy.ledger.names import normalise_name

FINE = {
    "one character": "a",
    "200 characters": "x" * 200,
    "every printable ASCII character": " ".join(chr(code) for code in range(0x21, 0x7F)),
    "a capital beyond ASCII": "\u00c4rzte",
    "a small letter beyond ASCII": "caf\u00e9",
    "a title-case letter": "\u1f88\u03b4\u03b7\u03c2",
    "Cyrillic": "\u0436\u0443\u043a",
    "Hebrew": "\u05d0\u05d1",
    "Arabic": "\u0635\u0648\u0631",
    "a Latin letter of Vietnamese": "\u01a1",
    "a Latin letter of Pinyin": "\u01ce",
    "a schwa": "\u0259",
    "a Romanian letter": "\u0219",
    "the length mark of Japanese": "\u30e9\u30fc\u30e1\u30f3",
    "the iteration mark of Chinese characters": "\u4f50\u3005\u6728",
    "the iteration marks of kana": "\u3044\u3059\u309d\u309e \u30ab\u30fd\u30fe",
    "Chinese and Latin": "\u9854 v2",
    "all that Japanese is written in": "A\u3042\u30a2\u9854",
    "all that Korean is written in": "A\ud55c\u9854",
    "all that Chinese is written in": "A\u3105\u9854",
    "one letter that looks Latin and one that does not": "\u0430\u0436",
    "no letter": "2024-05",
    "the start of a fingerprint": "hmac-sha256",
    "a fingerprint in the middle": "a hmac-sha256:00",
}
REJECTED = {
    "nothing": "",
    "201 characters": "x" * 201,
    "a space in front": " faces",
    "a space at the end": "faces ",
    "two spaces": "two  spaces",
    "a delete character": "faces\x7f",
    "a tab": "a\tb",
    "a combining accent": "\u0436\u0301",
    "a digit of another script": "\u0663",
    "a currency sign": "\u20ac",
    "a modifier": "faces\u02bc",
    "a caron": "\u4e00\u02c7",
    "a vertical tilde": "2024\u2e2f",
    "the tone of Lisu that looks like a full stop": "2024\ua4f81",
    "the line that lengthens Arabic letters": "\u0635\u0640\u0648\u0631",
    "a mark for vertical text": "\u3044\u3031",
    "a tone of Katakana": "\u30a2\U0001aff0",
    "a filler of Hangul": "\ud55c\u3164",
    "a letter that this Python may not know by name": "\U00017000",
    "Cherokee": "\u13a0",
    "Armenian": "\u0561",
    "a phonetic letter": "f\u0251ces",
    "a Greek small capital": "\u1d26\u03b4",
    "dotless i": "f\u0131les",
    "a kra": "\u0138",
    "full width": "\uff46aces",
    "a ligature": "\ufb01les",
    "Latin and Cyrillic": "f\u0430ces",
    "Latin and Greek": "f\u03b1ces",
    "Latin and Hebrew": "a\u05d0",
    "Korean and Japanese": "\ud55c\u3042",
    "Korean and Bopomofo": "\ud55c\u3105",
    "Japanese and Bopomofo": "\u3042\u3105",
    "Cyrillic that looks Latin": "\u0430\u0441\u0435",
    "Cyrillic that looks Latin, with digits": "\u0430\u0441\u0435 2",
    "Greek that looks Latin": "\u03bf\u03b1",
    "a fingerprint": "hmac-sha256:00",
    "a fingerprint in capitals": "HMAC-SHA256:00",
    "half of a pair": "\ud800",
    "a private character": "\ue000",
}


@pytest.mark.parametrize("name", FINE.values(), ids=FINE.keys())
def test_fine(name: str) -> None:
    assert normalise_name(name) == name


@pytest.mark.parametrize("name", REJECTED.values(), ids=REJECTED.keys())
def test_rejected(name: str) -> None:
    with pytest.raises(ss.InvalidInput, match=r"parameter must be a name"):
        normalise_name(name)


@pytest.mark.parametrize("name", [None, 3, b"faces", ["faces"]])
def test_no_text(name: object) -> None:
    with pytest.raises(ss.InvalidInput):
        normalise_name(name)


def test_composed() -> None:
    """A letter and its accent are one character."""
    assert normalise_name("cafe\u0301") == "caf\u00e9"
    assert normalise_name("\u1112\u1161\u11ab") == "\ud55c"
    assert normalise_name("e\u0301" * 200) == "\u00e9" * 200


def test_long_names_are_cut_in_the_message() -> None:
    with pytest.raises(ss.InvalidInput) as caught:
        normalise_name("y" * 5000)
    assert 70 < str(caught.value).count("y") < 85


def test_scripts() -> None:
    """The script of a letter is the first word of its Unicode name; the iteration mark goes with Chinese characters."""
    letters = {"a": "LATIN", "\u9854": "CJK", "\u3005": "CJK", "\u30fc": "KATAKANA", "\u3042": "HIRAGANA"}
    assert {letter: names._script(letter) for letter in letters} == letters
