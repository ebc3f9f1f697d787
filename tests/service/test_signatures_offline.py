"""`scoreshield verify` of what the service signs, without the service, and across rotated keys."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_support import TestClient, make_headers, make_query, open_service, write_policy

from scoreshield import cli
from scoreshield.service.application import create_app
from scoreshield.service.installation import rotate_signing_key

Verify = Callable[..., int]
SEARCH = "/v1/collections/docs/search"


@pytest.fixture
def verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verify:
    def run(content: bytes, public_key: str | None = None) -> int:
        path = tmp_path / "body.json"
        path.write_bytes(content)
        more = [] if public_key is None else ["--public-key", public_key]
        monkeypatch.setattr(sys, "argv", ["scoreshield", "verify", str(path), *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return run


def change(content: bytes, name: str) -> bytes:
    """Change one member of a signed document, and keep its signature."""
    document = json.loads(content)
    document[name] = 7 if name == "version" else {"changed": 1}
    return json.dumps(document).encode()


def test_every_signed_document(tmp_path: Path, verify: Verify) -> None:
    """Answers of each interface, certificates and entries verify by the key of the installation and by no other."""
    service = open_service(tmp_path, write_policy(collection={"embedder": "hashing"}))
    own = service.key.signer.public
    with TestClient(create_app(service)) as client:
        reader, officer = make_headers(service), make_headers(service, "officer")
        first = client.post(SEARCH, json={"query": make_query(1)}, headers=reader)
        entry = first.json()["entry"]
        documents = {
            "hits": first.content,
            "answers": client.post(SEARCH, json={"queries": [make_query(2)]}, headers=reader).content,
            "result": client.post(
                "/collections/docs/points/query", json={"query": make_query(1)}, headers=reader
            ).content,
            "data": client.post("/v1/vector_stores/docs/search", json={"query": "a text"}, headers=reader).content,
            "guarantee": client.get(f"/v1/collections/docs/certificate?entry={entry}", headers=reader).content,
            "entries": client.get("/v1/collections/docs/entries", headers=officer).content,
        }
    for member, content in documents.items():
        assert verify(content, own) == 0, member
        assert verify(content, "ab" * 32) == 1, member
        assert verify(change(content, member), own) == 1, member


def test_rotated_key(tmp_path: Path, verify: Verify) -> None:
    """After a rotation old bodies keep their bytes and their signer, and new ones have the new signer."""
    service = open_service(tmp_path)
    headers, officer = make_headers(service), make_headers(service, "officer")
    old = service.key.signer.public
    with TestClient(create_app(service), headers=headers) as client:
        first = client.post(SEARCH, json={"query": make_query(1)}).content
    service.close()
    new = rotate_signing_key(tmp_path / "scoreshield-installation.key")
    assert new != old
    restarted = open_service(tmp_path)
    with TestClient(create_app(restarted), headers=headers) as client:
        assert client.get("/v1/signing-keys").json()["keys"] == [new, old]
        again = client.post(SEARCH, json={"query": make_query(1)}).content
        later = client.post(SEARCH, json={"query": make_query(2)}).content
        entries = client.get("/v1/collections/docs/entries", headers=officer).content
    assert again == first
    for content, signer, other in ((again, old, new), (later, new, old), (entries, new, old)):
        assert verify(content, signer) == 0
        assert verify(content, other) == 1


def test_repeated_member(tmp_path: Path, verify: Verify) -> None:
    """A file that names a member twice fails: programs differ in which of the two they read."""
    service = open_service(tmp_path)
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        content = client.post(SEARCH, json={"query": make_query(1)}).content
    own = service.key.signer.public
    assert verify(content, own) == 0
    assert verify(b'{"version":9,' + content[1:], own) != 0
    assert verify(content.replace(b'"epsilon":1.0', b'"epsilon":0.1,"epsilon":1.0'), own) != 0
