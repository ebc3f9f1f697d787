"""What may not start again or be paid twice: budgets of the same records, and answers of the same query."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_support import make_query, make_rows, open_service, spent, write_policy

from scoreshield.errors import InvalidInput
from scoreshield.service.answers import AnswerBook, Payer
from scoreshield.service.core import Service
from scoreshield.service.problems import ServiceProblem

APP = Payer("app")


def ask(service: Service, seed: int = 1, k: int = 50) -> list[dict[str, Any]]:
    served = service.collections["docs"]
    return [hit.to_dict() for hit in served.search(APP, "search", [served.read_query(make_query(seed))], k)[0].hits]


def forget_proofs(folder: Path) -> None:
    """Make the databases as a version of the library left them that kept no proofs."""
    for name, statement in (
        ("service-docs.ledger.db", "UPDATE scoreshield_service_answers SET proof = NULL"),
        ("service.db", "DELETE FROM scoreshield_service_facts WHERE name = 'proofs of docs'"),
    ):
        with contextlib.closing(sqlite3.connect(folder / name)) as connection:
            connection.execute(statement)
            connection.commit()


def write_two(**changes: Any) -> dict[str, Any]:
    """Write a policy with a copy of the file as a second collection."""
    content = write_policy()
    content["collections"]["copy"] = {**content["collections"]["docs"], "file": "copy.npz", **changes}
    return content


def test_copy_of_collection_gets_no_second_budget(tmp_path: Path) -> None:
    """The same vectors are not served under a second name, beside the first or instead of it."""
    open_service(tmp_path).close()
    shutil.copy(tmp_path / "docs.npz", tmp_path / "copy.npz")
    both = write_two()
    with pytest.raises(InvalidInput, match="two collections may not share records"):
        open_service(tmp_path, both)
    renamed = write_policy(collections={"copy": both["collections"]["copy"]}, callers={})
    renamed["callers"] = {}
    with pytest.raises(InvalidInput, match="two collections may not share records"):
        open_service(tmp_path, renamed)
    np.savez(tmp_path / "copy.npz", embeddings=make_rows().astype(np.float64))
    both = write_two(ids=None, fields=[])
    with pytest.raises(InvalidInput, match="two collections may not share records"):
        open_service(tmp_path, both)
    assert not (tmp_path / "service-copy.ledger.db").exists()
    np.savez(tmp_path / "copy.npz", embeddings=make_rows(1))
    assert set(open_service(tmp_path, both).collections) == {"docs", "copy"}


@pytest.mark.parametrize("order", ["reversed", "sorted", "one pair"])
def test_reordered_copy_gets_no_second_budget(tmp_path: Path, order: str) -> None:
    """The same vectors in another order are the same records, beside the first name or instead of it."""
    rows = make_rows()
    places = {
        "reversed": np.arange(len(rows))[::-1],
        "sorted": np.argsort(rows[:, 0]),
        "one pair": np.r_[1, 0, 2 : len(rows)],
    }
    both = write_two(ids=None, fields=[])
    open_service(tmp_path).close()
    np.savez(tmp_path / "copy.npz", embeddings=rows[places[order]].astype(np.float64))
    with pytest.raises(InvalidInput, match="two collections may not share records"):
        open_service(tmp_path, both)
    renamed = write_policy(collections={"copy": both["collections"]["copy"]})
    renamed["callers"] = {}
    with pytest.raises(InvalidInput, match="two collections may not share records"):
        open_service(tmp_path, renamed)
    rows[1] = -rows[1]
    np.savez(tmp_path / "copy.npz", embeddings=rows[places[order]])
    assert set(open_service(tmp_path, both).collections) == {"docs", "copy"}


def test_copy_is_found_after_an_update(tmp_path: Path) -> None:
    """Vectors that an earlier version of the library has pinned, by a hash of their order, are found again."""
    service = open_service(tmp_path)
    unordered, ordered = service.collections["docs"].data.hash_vectors(service.key)
    assert service.database.write(
        lambda execute: execute("DELETE FROM scoreshield_service_facts WHERE name = :name", name=f"vectors {unordered}")
    ).rowcount
    assert ordered != unordered
    service.close()
    shutil.copy(tmp_path / "docs.npz", tmp_path / "copy.npz")
    renamed = write_policy(collections={"copy": write_two()["collections"]["copy"]})
    renamed["callers"] = {}
    with pytest.raises(InvalidInput, match="two collections may not share records"):
        open_service(tmp_path, renamed)


def test_start_that_fails_claims_no_vectors(tmp_path: Path) -> None:
    """A start that fails does not keep the vectors from another name."""
    with pytest.raises(InvalidInput, match="its budget covers"):
        open_service(tmp_path, write_policy(collection={"expected_queries": 1000}))
    shutil.copy(tmp_path / "docs.npz", tmp_path / "copy.npz")
    renamed = write_policy(collections={"copy": write_two()["collections"]["copy"]})
    renamed["callers"] = {}
    assert set(open_service(tmp_path, renamed).collections) == {"copy"}


def test_same_direction_in_other_digits_is_same_query(tmp_path: Path) -> None:
    """A vector keeps its tag in other digits and in another length. A vector that differs by a step does not."""
    rows = np.random.default_rng(5).standard_normal((20, 384)).astype(np.float32)
    np.savez(tmp_path / "docs.npz", embeddings=rows)
    service = open_service(tmp_path, write_policy(collection={"ids": None, "fields": []}))
    served = service.collections["docs"]

    def tag(values: Any) -> str:
        query = served.read_query([float(one) for one in values])
        return served._book.make_request(served.offers["search"], query).tag

    vectors = np.random.default_rng(6).standard_normal((500, 384))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    kept, kept_single, moved = 0, 0, 0
    for vector in vectors:
        single = vector.astype(np.float32)
        first = tag(single)
        is_same = tag(vector) == first
        kept_single += is_same
        kept += is_same + (tag(str(one) for one in single) == first) + (tag(f"{one:.8g}" for one in single) == first)
        kept += tag(3 * vector) == tag(vector)
        moved += tag(vector + 2**-13 * np.eye(384)[0]) != tag(vector)
    # Rounding to single precision moves about 3 of 500 over an edge; 21 or 16 have a chance below one in a million.
    assert kept >= 0.99 * 4 * 500
    assert kept_single >= 485
    assert moved == 500


def test_edits_that_touch_no_vector_are_free(tmp_path: Path) -> None:
    """Public fields, types, `keep` and a `k` without effect on the noise change no answer and charge nothing."""
    auto = {"mechanism": "auto", "epsilon": 1.0, "most": 50, "keep": 60, "k": 2}
    settings: dict[str, Any] = {"search": auto, "index": {"epsilon": 2.0}}
    service = open_service(tmp_path, write_policy(collection=settings))
    first = ask(service)
    assert spent(service) == 3.0
    ids, rows = np.array([f"r{place}" for place in range(300)]), make_rows()
    np.savez(tmp_path / "docs.npz", embeddings=rows.astype(np.float64), ids=ids, year=np.full(300, 1999))
    shorter = open_service(tmp_path, write_policy(collection={**settings, "search": {**auto, "k": 3, "keep": 55}}))
    again = ask(shorter)
    assert [(one["id"], one["score"]) for one in again] == [(one["id"], one["score"]) for one in first]
    assert {one["fields"]["year"] for one in again} == {1999}
    longer = {**auto, "keep": 300, "most": 300}
    assert len(ask(open_service(tmp_path, write_policy(collection={**settings, "search": longer})), k=300)) == 60
    assert spent(shorter) == 3.0
    np.savez(tmp_path / "docs.npz", embeddings=np.nextafter(rows, 2), ids=ids, year=np.full(300, 1999))
    changed = open_service(tmp_path, write_policy(collection=settings))
    assert ask(changed) != again
    assert spent(changed) == 6.0


def test_pending_answer_survives_edit_of_public_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A charge whose answer was not drawn yet is answered after an edit of a public field, also in a batch."""
    service = open_service(tmp_path)

    def stop(*_: Any) -> Any:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(AnswerBook, "_draw", stop)
        with pytest.raises(RuntimeError):
            ask(service)
    ids = np.array([f"r{place}" for place in range(300)])
    np.savez(tmp_path / "docs.npz", embeddings=make_rows(), ids=ids, year=np.full(300, 1999))
    served = open_service(tmp_path).collections["docs"]
    assert served.version == 2
    assert len(served.search(APP, "search", [served.read_query(make_query(seed)) for seed in (1, 2)])) == 2
    assert served.account.spent == 2.0


def test_index_of_earlier_versions_is_not_charged_again(tmp_path: Path) -> None:
    """An index that was stored under the hash of all data, with ids and fields, is found."""
    settings: dict[str, Any] = {"index": {"epsilon": 2.0}}
    served = open_service(tmp_path, write_policy(collection=settings)).collections["docs"]
    older = served._book.make_request(served.offers["index"], None).older
    forget_proofs(tmp_path)
    served.account.ledger.write_beside(
        lambda session: session.execute("UPDATE scoreshield_service_answers SET tag = ?", (older,))
    )
    again = open_service(tmp_path, write_policy(collection=settings)).collections["docs"]
    assert again.account.spent == 2.0
    assert again.read_index().content == served.read_index().content


@pytest.mark.parametrize(
    "change",
    [
        """content = CAST(replace(CAST(content AS TEXT), '"epsilon":1.0', '"epsilon":0.1') AS BLOB)""",
        "content = CAST(content AS TEXT)",
        "signer = x'ff'",
        "entry = 'another'",
        "proof = NULL",
        "content = (SELECT content FROM scoreshield_service_answers ORDER BY rowid LIMIT 1), "
        "proof = (SELECT proof FROM scoreshield_service_answers ORDER BY rowid LIMIT 1)",
    ],
)
def test_answer_that_others_wrote_is_not_signed(tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever can write to the database cannot make the service send and sign something else."""
    service = open_service(tmp_path)
    ask(service, 1)
    ask(service, 2)
    with contextlib.closing(sqlite3.connect(tmp_path / "service-docs.ledger.db")) as connection:
        connection.execute(f"UPDATE scoreshield_service_answers SET {change}")
        connection.commit()
    with pytest.raises(ServiceProblem) as caught:
        ask(open_service(tmp_path), 2)
    assert (caught.value.code, caught.value.status) == ("ledger_unavailable", 503)
    assert "was changed outside of the service" in caplog.text


def test_answers_without_proofs_load_once(tmp_path: Path) -> None:
    """Answers of a version of the library that kept no proofs get theirs at the first start."""
    first = ask(open_service(tmp_path))
    forget_proofs(tmp_path)
    for _ in range(2):
        service = open_service(tmp_path)
        assert ask(service) == first
        assert spent(service) == 1.0


def test_caller_named_service_does_not_pay_for_index(tmp_path: Path) -> None:
    """The index is charged to a name that no caller can have."""
    caller = {"role": "reader", "collections": {"docs": {"actions": ["search"], "allowance": {"epsilon": 1.0}}}}
    content = write_policy(collection={"index": {"epsilon": 2.0}}, callers={"service": caller})
    served = open_service(tmp_path, content).collections["docs"]
    assert served.account.spent == 2.0
    assert served._book.read_spending("service").queries == 0
    assert [entry.who for entry in served.account.entries()] == ["(service)"]
