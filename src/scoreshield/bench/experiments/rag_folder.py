"""The folder of one DP-RAG run: one writer at a time, one set of settings, and one retrieval that is never repeated.

Only their owner may read the files. What is read back is checked as if a stranger had written it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scoreshield import _loading
from scoreshield._files import RunFolder
from scoreshield.bench.rag.corpus import Question
from scoreshield.bench.rag.retrieval import AUDIENCE, RETRIEVING, SCOPE, RetrievalRecord, parse_records
from scoreshield.errors import InvalidInput
from scoreshield.privacy.guarantee import Guarantee

RETRIEVAL = "retrieval.json"
#: What a run writes into its folder, embeddings and answers apart.
FILES = (RunFolder.SETTINGS, RETRIEVAL, RunFolder.LOCK, "results.json", "results.csv")
#: The settings of a run without a generator, which may be added to it.
NOT_ANSWERING: dict[str, Any] = dict.fromkeys(("generator", "judge", "conditions", "max_tokens", "leave_out"))


def hash_items(items: Iterable[object]) -> str:
    """Hash what was read, not the file: a pipe can be read only once, and a file may change meanwhile."""
    found = hashlib.sha256()
    for item in items:
        found.update(json.dumps(item).encode() + b"\n")
    return found.hexdigest()


@contextlib.contextmanager
def lock_rag_folder(path: Path, settings: dict[str, Any]) -> Iterator[RunFolder]:
    """Hold the folder of this run, which may be that of a run with these settings and no generator."""
    with RunFolder(path, extra="rag", is_private=True).lock() as folder:
        folder.start_or_resume(settings, compatible=[settings | NOT_ANSWERING])
        (path / "embeddings").mkdir(mode=0o700, exist_ok=True)
        yield folder


def encode_json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode()


def write_retrieval(
    folder: RunFolder, records: Sequence[RetrievalRecord], guarantee: Guarantee, facts: dict[str, Any]
) -> None:
    """Write what was retrieved, whole, and never over an existing file."""
    path, part = folder.path / RETRIEVAL, folder.path / f".{RETRIEVAL}.{secrets.token_hex(8)}.part"
    listed = [{"question": r.question, "condition": r.condition, "indices": list(r.indices)} for r in records]
    content = {"scope": SCOPE, "audience": AUDIENCE, **facts, "records": listed, "guarantee": guarantee.to_dict()}
    folder.write({part.name: encode_json(content)})
    try:
        os.link(part, path)
    except FileExistsError:
        raise InvalidInput(f"{path} was written by another run meanwhile, and is left as it is.") from None
    except OSError:  # the disk has no hard links; then only the lock protects the file
        folder.write({RETRIEVAL: part.read_bytes()})
    finally:
        part.unlink(missing_ok=True)


def read_retrieval(
    out: Path, questions: Sequence[Question], chunks: int, facts: dict[str, Any], promise: tuple[float, float, str]
) -> tuple[tuple[RetrievalRecord, ...], Guarantee] | None:
    """Read what was retrieved before, with the guarantee of one release; None where nothing was.

    Args:
        facts: What `write_retrieval` got: these must be the same, the "k" of the rule among them.
        promise: The epsilon, delta and sampler that the guarantee must have.
    """
    path = out / RETRIEVAL
    if not path.exists():
        return None
    try:
        data = _loading.parse_json(_loading.read_bytes(path))
        records, guarantee = parse_records(data["records"]), Guarantee.from_dict(data["guarantee"])
        sound = (
            {name: data[name] for name in facts} == facts
            and (guarantee.epsilon, guarantee.delta, guarantee.sampler) == promise
            and [(r.condition, r.question) for r in records] == [(c, q.id) for c in RETRIEVING for q in questions]
            and all(_is_ranking(record.indices, chunks, facts["k"]) for record in records)
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        sound = False
    if not sound:
        raise InvalidInput(
            f"{path} is damaged or not of this run, and retrieving again would release again: name another run folder."
        )
    return records, guarantee


def _is_ranking(indices: tuple[int, ...], chunks: int, k: int) -> bool:
    return len(indices) <= k and len(set(indices)) == len(indices) and all(index < chunks for index in indices)
