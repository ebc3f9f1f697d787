"""Sentence pairs from the official files: the STS Benchmark."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.bench.data import _files, archives, cache
from scoreshield.bench.data.sets import SentencePairs
from scoreshield.errors import InvalidInput

_SPLITS = ("train", "dev", "test")
_DECIMAL = re.compile(r"[0-9](\.[0-9]{1,20})?")


@validate()
def stsb(
    root: str | Path | None = None,
    *,
    split: str = "test",
    offline: bool = False,
    progress: cache.Progress | None = None,
) -> SentencePairs:
    """The STS Benchmark: 5,749 ("train"), 1,500 ("dev") or 1,379 ("test") pairs, not embedded yet.

    Sentences are numbered by first appearance, the first of a pair before the second.

    Parameters
    ----------
    root, offline, progress : see `scoreshield.bench.data.cache.fetch`.
    """
    return read_stsb(cache.fetch_file("stsb", "Stsbenchmark.tar.gz", root, offline, progress), split=split)


def read_stsb(path: str | Path, *, split: str = "test") -> SentencePairs:
    """The same from a ``Stsbenchmark.tar.gz`` that is already here.

    Its files are called .csv but are separated by tabs, and quotation marks mean nothing in them: genre, file, year,
    number, score, sentence, sentence, and in some rows the origin of each sentence.
    """
    member = f"stsbenchmark/sts-{_validation.check_option(split, 'split', _SPLITS)}.csv"
    file = _files.path_of(path)
    where = f"{file}: {member}"
    numbers: dict[str, int] = {}
    pairs, human = [], []
    for number, line in archives.lines(archives.tar_members(file, [member])[member], where):
        parts = line.split("\t")
        if len(parts) < 7 or not parts[5].strip() or not parts[6].strip():
            raise InvalidInput(
                f"{where}, line {number}: a line must hold genre, file, year, number, score and two sentences."
            )
        human.append(_score(parts[4], f"{where}, line {number}"))
        pairs.append([numbers.setdefault(text.strip(), len(numbers)) for text in parts[5:7]])
    if not pairs:
        raise InvalidInput(f"{where} holds no pairs.")
    first, second = np.array(pairs).T
    return SentencePairs(
        name=f"STS-B {split}", sentences=tuple(numbers), first=first, second=second, human=np.array(human)
    )


def _score(text: str, where: str) -> float:
    if not _DECIMAL.fullmatch(text.strip()) or float(text) > 5:
        raise InvalidInput(f"{where}: the score must be a number from 0 to 5; it is {text[:20]!r}.")
    return float(text)
