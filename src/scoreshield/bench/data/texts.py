"""Texts from the official files: sentence pairs of the STS Benchmark, SciFact as BEIR gives it, and FRAMES."""

from __future__ import annotations

import ast
import csv
import io
import re
from pathlib import Path
from urllib.parse import parse_qs, unquote

import numpy as np

from scoreshield import _loading, _validation
from scoreshield._validation import validate
from scoreshield.bench.data import archives, cache
from scoreshield.bench.data.archives import parse_digits
from scoreshield.bench.data.sets import RetrievalSet, SentencePairs, group_by_query
from scoreshield.errors import InvalidInput

_SPLITS = ("train", "dev", "test")
_DECIMAL = re.compile(r"[0-9](\.[0-9]{1,20})?")
_LINK = re.compile(r"wikipedia_link_\d+\+?")
_MOST_DECODED = 8
_BETWEEN = re.compile(r"[\s,;|]+(?=https?://)")  # several addresses in one cell
_MOST = 1_000_000  # the highest grade of a judgement that is plausible


@validate()
def load_stsb(
    root: str | Path | None = None,
    *,
    split: str = "test",
    offline: bool = False,
    progress: cache.Progress | None = None,
) -> SentencePairs:
    """Load the STS Benchmark: 5,749 ("train"), 1,500 ("dev") or 1,379 ("test") pairs, not embedded yet.

    Sentences are numbered by first appearance, the first of a pair before the second.

    Args:
        root: See `scoreshield.bench.data.cache.fetch`.
        offline: See `scoreshield.bench.data.cache.fetch`.
        progress: See `scoreshield.bench.data.cache.fetch`.
    """
    return read_stsb(cache.fetch_file("stsb", "Stsbenchmark.tar.gz", root, offline, progress), split=split)


@validate()
def read_stsb(path: str | Path, *, split: str = "test") -> SentencePairs:
    """Read the same from a ``Stsbenchmark.tar.gz`` that is already here.

    Its files are called .csv but are separated by tabs, and quotation marks mean nothing in them: genre, file, year,
    number, score, sentence, sentence, and in some rows the origin of each sentence.
    """
    member = f"stsbenchmark/sts-{_validation.check_option(split, 'split', _SPLITS)}.csv"
    file = archives.check_path(path)
    where = f"{file}: {member}"
    numbers: dict[str, int] = {}
    pairs, human = [], []
    for number, line in archives.split_lines(archives.read_tar_members(file, [member])[member], where):
        parts = line.split("\t")
        if len(parts) < 7 or not parts[5].strip() or not parts[6].strip():
            raise InvalidInput(
                f"{where}, line {number}: a line must hold genre, file, year, number, score and two sentences."
            )
        human.append(_parse_score(parts[4], f"{where}, line {number}"))
        pairs.append([numbers.setdefault(text.strip(), len(numbers)) for text in parts[5:7]])
    if not pairs:
        raise InvalidInput(f"{where} holds no pairs.")
    first, second = np.array(pairs).T
    return SentencePairs(
        name=f"STS-B {split}", sentences=tuple(numbers), first=first, second=second, human=np.array(human)
    )


def _parse_score(text: str, where: str) -> float:
    if not _DECIMAL.fullmatch(text.strip()) or float(text) > 5:
        raise InvalidInput(f"{where}: the score must be a number from 0 to 5; it is {text[:20]!r}.")
    return float(text)


def load_scifact(
    root: str | Path | None = None, *, offline: bool = False, progress: cache.Progress | None = None
) -> RetrievalSet:
    """Load SciFact: 5,183 abstracts and the 300 test claims, not embedded yet.

    A document is its title, a space and its abstract.

    Args:
        root: See `scoreshield.bench.data.cache.fetch`.
        offline: See `scoreshield.bench.data.cache.fetch`.
        progress: See `scoreshield.bench.data.cache.fetch`.
    """
    return read_beir(cache.fetch_file("scifact", "scifact.zip", root, offline, progress), name="SciFact")


@validate()
def read_beir(path: str | Path, *, name: str, folder: str | None = None, split: str = "test") -> RetrievalSet:
    """Read a set in BEIR's form: corpus.jsonl, queries.jsonl and qrels/<split>.tsv in a zip archive.

    Only queries with a document graded above 0 are kept, in the order of queries.jsonl. ``folder`` is the one inside
    the archive; None means that it is called what the archive is.
    """
    file = archives.check_path(path)
    for value, option in ((name, "name"), (folder or "", "folder"), (split, "split")):
        if not isinstance(value, str):
            _validation.reject(option, "a text", value)
    folder = file.stem if folder is None else folder
    parts = [f"{folder}/corpus.jsonl", f"{folder}/queries.jsonl", f"{folder}/qrels/{split}.tsv"]
    content = archives.read_zip_members(file, parts)
    corpus = _read_records(content[parts[0]], f"{path}: {parts[0]}")
    queries = _read_records(content[parts[1]], f"{path}: {parts[1]}")
    graded = _read_judgements(content[parts[2]], f"{path}: {parts[2]}", queries, corpus)
    kept = [key for key in queries if key in graded]
    places = {key: place for place, key in enumerate(corpus)}
    pairs = [(place, places[document]) for place, key in enumerate(kept) for document in graded[key]]
    return RetrievalSet(
        name=name,
        documents=tuple(f"{title} {text}".strip() for title, text in corpus.values()),
        queries=tuple(queries[key][1] for key in kept),
        relevant=group_by_query(pairs, len(kept)),
        titles=tuple(title for title, _ in corpus.values()),
    )


def _read_records(content: bytes, where: str) -> dict[str, tuple[str, str]]:
    """Read title and text by identifier, one JSON object per line."""
    records: dict[str, tuple[str, str]] = {}
    for number, line in archives.split_lines(content, where):
        try:
            record = _loading.parse_json(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("_id", "text")):
            raise InvalidInput(f"{where}, line {number}: a line must be a JSON object with texts '_id' and 'text'.")
        if record["_id"] in records:
            raise InvalidInput(f"{where}, line {number}: the identifier {record['_id']!r} comes twice.")
        records[record["_id"]] = (str(record.get("title") or ""), record["text"])
    if not records:
        raise InvalidInput(f"{where} holds no records.")
    return records


def _read_judgements(
    content: bytes, where: str, queries: dict[str, tuple[str, str]], corpus: dict[str, tuple[str, str]]
) -> dict[str, list[str]]:
    """Read the relevant documents of each query that has any."""
    rows = archives.split_lines(content, where)
    header = next(rows, (1, ""))[1].split("\t")
    if header != ["query-id", "corpus-id", "score"]:
        raise InvalidInput(f"{where}, line 1: the first line must name query-id, corpus-id and score, with tabs.")
    graded: dict[str, list[str]] = {}
    for number, line in rows:
        parts = line.split("\t")
        grade = parse_digits(parts[2].strip(), _MOST) if len(parts) == 3 else None
        if grade is None:
            raise InvalidInput(f"{where}, line {number}: a line must hold a query, a document and a whole score.")
        if parts[0] not in queries or parts[1] not in corpus:
            raise InvalidInput(f"{where}, line {number}: it names a query or a document that the archive lacks.")
        if grade > 0:
            graded.setdefault(parts[0], []).append(parts[1])
    if not graded:
        raise InvalidInput(f"{where} judges no document relevant.")
    return graded


def load_frames(
    root: str | Path | None = None, *, offline: bool = False, progress: cache.Progress | None = None
) -> RetrievalSet:
    """Load FRAMES: 824 questions of several steps and the titles of the pages that answer them, not embedded.

    The file names pages by their addresses and holds no text of them, so that a document is a title.
    """
    return read_frames(cache.fetch_file("frames", "test.tsv", root, offline, progress))


@validate()
def read_frames(path: str | Path) -> RetrievalSet:
    """Read the same from a ``test.tsv`` that is already here, with columns Prompt, Answer and the links.

    Links stand in wiki_links as a Python list, which is read as a literal and never run, or else in wikipedia_link_1,
    wikipedia_link_2 and so on, the last of which may hold several. A title is what follows /wiki/ in the address,
    decoded, with spaces for underscores, without a query and a fragment. ``relevant`` names the pages of a question in
    the order of its links, each once.
    """
    file = archives.check_path(path)
    rows = _read_table(file)
    links = [_list_pages(row, f"{file}, line {number}") for number, row in rows]
    titles = {title: place for place, title in enumerate(dict.fromkeys(title for pages in links for title in pages))}
    return RetrievalSet(
        name="FRAMES",
        documents=tuple(titles),
        queries=tuple(row["Prompt"].strip() for _, row in rows),
        relevant=tuple(np.array([titles[title] for title in pages]) for pages in links),
        titles=tuple(titles),
        answers=tuple(row["Answer"].strip() for _, row in rows),
    )


@validate()
def read_frames_links(path: str | Path) -> tuple[tuple[str, ...], ...]:
    """Read the titles of the pages of each FRAMES question, in the order of its links, from a ``test.tsv``."""
    found = read_frames(path)
    return tuple(tuple(found.documents[page] for page in pages) for pages in found.relevant)


def _read_table(path: Path) -> list[tuple[int, dict[str, str]]]:
    with _loading.explain_read_errors(path):
        text = _loading.read_bytes(path).decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", strict=True)
        rows = [(reader.line_num, row) for row in reader]
    missing = [name for name in ("Prompt", "Answer") if name not in (reader.fieldnames or ())]
    if missing or not rows:
        raise InvalidInput(f"{path} must hold questions in columns Prompt, Answer and links, separated by tabs.")
    broken = [number for number, row in rows if None in row or None in row.values()]
    if broken:
        raise InvalidInput(f"{path}, line {broken[0]}: the row has too many or too few columns.")
    return rows


def _list_pages(row: dict[str, str], where: str) -> list[str]:
    """List the titles of the pages of one question, in order, each once."""
    cells = _list_links(row, where)
    pages = [_find_title(link) for cell in cells for link in _BETWEEN.split(cell.strip(" \t\r\n,;|")) if link]
    if not pages or not all(pages) or not row["Prompt"].strip():
        raise InvalidInput(f"{where}: a question needs a text and at least one link to a page.")
    return list(dict.fromkeys(pages))


def _list_links(row: dict[str, str], where: str) -> list[str]:
    listed = row.get("wiki_links", "").strip()
    if not listed:
        return [link for name, link in row.items() if _LINK.fullmatch(name)]
    try:
        links = ast.literal_eval(listed)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        links = None
    if not isinstance(links, list) or not all(isinstance(link, str) for link in links):
        raise InvalidInput(f"{where}: the column wiki_links must hold a list of addresses.")
    return links


def _find_title(link: str) -> str:
    """Find the title of the page at an address.

    Some addresses are encoded twice. Decoding more often is safe, since MediaWiki allows neither a percent
    sign before two hexadecimal digits nor "#" in a title; a question mark in a title is encoded.
    """
    address, _, query = link.partition("#")[0].partition("?")
    _, known, page = address.partition("/wiki/")  # what follows may hold a slash of its own
    if not known:
        page = parse_qs(query).get("title", [address.rstrip("/").rpartition("/")[2]])[0]
    for _ in range(_MOST_DECODED):
        page = unquote(page)
    return page.partition("#")[0].replace("_", " ").strip()
