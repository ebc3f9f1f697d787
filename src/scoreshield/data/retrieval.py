"""Queries and documents from the official files: SciFact as BEIR gives it, and FRAMES."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from pathlib import Path
from urllib.parse import unquote

from scoreshield.data import archives, cache
from scoreshield.data.sets import RetrievalSet, grouped
from scoreshield.errors import FileError, InvalidInput

_LINK = re.compile(r"wikipedia_link_\d+\+?")


def scifact(
    root: str | Path | None = None, *, offline: bool = False, progress: cache.Progress | None = None
) -> RetrievalSet:
    """SciFact: 5,183 abstracts and the 300 test claims, not embedded yet.

    A document is its title, a space and its abstract.

    Parameters
    ----------
    root, offline, progress : see `scoreshield.data.cache.fetch`.
    """
    return read_beir(cache.fetch_file("scifact", "scifact.zip", root, offline, progress), name="SciFact")


def read_beir(path: str | Path, *, name: str, folder: str | None = None, split: str = "test") -> RetrievalSet:
    """A set in BEIR's form that is already here: corpus.jsonl, queries.jsonl and qrels/<split>.tsv in a zip archive.

    Only queries with a document judged above 0 are kept, in the order of queries.jsonl. ``folder`` is the one inside
    the archive; None means that it is called what the archive is.
    """
    folder = Path(path).stem if folder is None else folder
    parts = [f"{folder}/corpus.jsonl", f"{folder}/queries.jsonl", f"{folder}/qrels/{split}.tsv"]
    content = archives.zip_members(Path(path), parts)
    corpus = _records(content[parts[0]], f"{path}: {parts[0]}")
    queries = _records(content[parts[1]], f"{path}: {parts[1]}")
    judged = _judgements(content[parts[2]], f"{path}: {parts[2]}", queries, corpus)
    kept = [key for key in queries if key in judged]
    places = {key: place for place, key in enumerate(corpus)}
    pairs = [(place, places[document]) for place, key in enumerate(kept) for document in judged[key]]
    return RetrievalSet(
        name=name,
        documents=tuple(f"{title} {text}".strip() for title, text in corpus.values()),
        queries=tuple(queries[key][1] for key in kept),
        relevant=grouped(pairs, len(kept)),
        titles=tuple(title for title, _ in corpus.values()),
    )


def _records(content: bytes, where: str) -> dict[str, tuple[str, str]]:
    """Title and text by identifier, one JSON object a line."""
    records: dict[str, tuple[str, str]] = {}
    for number, line in archives.lines(content, where):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("_id", "text")):
            raise InvalidInput(f"{where}, line {number}: a line must be a JSON object with texts '_id' and 'text'.")
        if record["_id"] in records:
            raise InvalidInput(f"{where}, line {number}: the identifier {record['_id']!r} comes twice.")
        records[record["_id"]] = (str(record.get("title") or ""), record["text"])
    if not records:
        raise InvalidInput(f"{where} holds no records.")
    return records


def _judgements(
    content: bytes, where: str, queries: dict[str, tuple[str, str]], corpus: dict[str, tuple[str, str]]
) -> dict[str, list[str]]:
    """The relevant documents of each query that has any."""
    rows = archives.lines(content, where)
    header = next(rows, (1, ""))[1].split("\t")
    if header != ["query-id", "corpus-id", "score"]:
        raise InvalidInput(f"{where}, line 1: the first line must name query-id, corpus-id and score, with tabs.")
    judged: dict[str, list[str]] = {}
    for number, line in rows:
        parts = line.split("\t")
        if len(parts) != 3 or not parts[2].strip().isdecimal():
            raise InvalidInput(f"{where}, line {number}: a line must hold a query, a document and a whole score.")
        if parts[0] not in queries or parts[1] not in corpus:
            raise InvalidInput(f"{where}, line {number}: it names a query or a document that the archive lacks.")
        if int(parts[2]) > 0:
            judged.setdefault(parts[0], []).append(parts[1])
    if not judged:
        raise InvalidInput(f"{where} judges no document relevant.")
    return judged


def frames(
    root: str | Path | None = None, *, offline: bool = False, progress: cache.Progress | None = None
) -> RetrievalSet:
    """FRAMES: 824 questions of several steps and the titles of the pages that answer them, not embedded yet.

    The file names pages by their addresses and holds no text of them, so that a document is a title.
    """
    return read_frames(cache.fetch_file("frames", "test.tsv", root, offline, progress))


def read_frames(path: str | Path) -> RetrievalSet:
    """The same from a ``test.tsv`` that is already here, with columns Prompt, Answer and the links.

    Links stand in wiki_links as a Python list, which is read as a literal and never run, or else in wikipedia_link_1,
    wikipedia_link_2 and so on. A title is the last part of the address, decoded, with spaces for underscores and
    without the fragment.
    """
    titles: dict[str, int] = {}
    questions: list[str] = []
    answers: list[str] = []
    pairs: list[tuple[int, int]] = []
    for number, row in _table(Path(path)):
        pages = [_title(link) for link in _links(row, f"{path}, line {number}")]
        if not pages or not all(pages) or not row["Prompt"].strip():
            raise InvalidInput(f"{path}, line {number}: a question needs a text and at least one link to a page.")
        pairs += [(len(questions), titles.setdefault(page, len(titles))) for page in pages]
        questions.append(row["Prompt"].strip())
        answers.append(row["Answer"].strip())
    return RetrievalSet(
        name="FRAMES",
        documents=tuple(titles),
        queries=tuple(questions),
        relevant=grouped(pairs, len(questions)),
        titles=tuple(titles),
        answers=tuple(answers),
    )


def _table(path: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", strict=True)
        rows = [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"{path} is corrupt, truncated or of another kind: {reason}.") from None
    missing = [name for name in ("Prompt", "Answer") if name not in (reader.fieldnames or ())]
    if missing or not rows:
        raise InvalidInput(f"{path} must hold questions in columns Prompt, Answer and links, separated by tabs.")
    broken = [number for number, row in rows if None in row or None in row.values()]
    if broken:
        raise InvalidInput(f"{path}, line {broken[0]}: the row has too many or too few columns.")
    return rows


def _links(row: dict[str, str], where: str) -> list[str]:
    listed = row.get("wiki_links", "").strip()
    if not listed:
        return [link.strip() for name, link in row.items() if _LINK.fullmatch(name) and link.strip()]
    try:
        links = ast.literal_eval(listed)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        links = None
    if not isinstance(links, list) or not all(isinstance(link, str) for link in links):
        raise InvalidInput(f"{where}: the column wiki_links must hold a list of addresses.")
    return links


def _title(link: str) -> str:
    _, known, page = link.strip().partition("/wiki/")  # what follows may hold a slash of its own
    if not known:
        page = link.strip().rstrip("/").rpartition("/")[2]
    return unquote(page.partition("#")[0]).replace("_", " ").strip()
