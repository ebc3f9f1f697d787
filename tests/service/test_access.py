"""API keys: shown once, stored as a hash, narrower than their caller, ended by time, rotation and revocation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_support import TestClient, make_headers, make_query, open_service, write_policy

from scoreshield.errors import InvalidInput
from scoreshield.service.access import RateLimiter, make_key_text, parse_prefix
from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.policy import RatePolicy
from scoreshield.service.problems import ServiceProblem

FACTS = "/v1/collections/docs"
SEARCH = f"{FACTS}/search"


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return open_service(tmp_path)


def find_code(service: Service, text: str | None, *, now: datetime | None = None) -> str:
    try:
        if now is not None:
            service.keys.authenticate(text or "", now=now)
        else:
            service.authenticate(text)
    except ServiceProblem as problem:
        return problem.code
    return "ok"


def test_form_of_a_key() -> None:
    """A key has 256 random bits and a checksum, which finds every error in one character."""
    prefix, text = make_key_text()
    assert text.startswith(f"ss_{prefix}_")
    assert len(text) == 3 + 8 + 1 + 64 + 8
    assert parse_prefix(text) == prefix
    for place in range(3, len(text)):
        wrong = text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :]
        assert parse_prefix(wrong) is None
    assert make_key_text()[1] != text


def test_key_is_not_stored(service: Service, tmp_path: Path) -> None:
    """The database holds neither the key nor its random part."""
    _, text = service.keys.create("app")
    assert find_code(service, text) == "ok"
    content = (tmp_path / "service.db").read_bytes()
    assert text.encode() not in content
    assert text[12:76].encode() not in content


@pytest.mark.parametrize("text", [None, "", "x", "ss_00000000_" + "0" * 72, "Bearer", "ss_é", "a" * 10_000])
def test_wrong_key(service: Service, text: str | None) -> None:
    """A text that is no key gets the code of a missing or an invalid key, and no other error."""
    assert find_code(service, text) in ("missing_key", "invalid_key")


def test_guessed_secret_of_a_known_prefix(service: Service) -> None:
    """A key with the prefix of another one and a good checksum is not valid."""
    import hashlib

    key, _ = service.keys.create("app")
    start = f"ss_{key.prefix}_{'0' * 64}"
    assert find_code(service, start + hashlib.sha256(start.encode()).hexdigest()[:8]) == "invalid_key"


def test_revoked_and_expired(service: Service) -> None:
    """A revoked key, an expired one and a key of a caller that is gone are not valid."""
    key, text = service.keys.create("app")
    assert find_code(service, text) == "ok"
    service.keys.revoke(key.prefix)
    assert find_code(service, text) == "key_revoked"
    now = datetime.now(UTC)
    _, short = service.keys.create("app", expires=now + timedelta(hours=1))
    assert find_code(service, short) == "ok"
    assert find_code(service, short, now=now + timedelta(hours=2)) == "key_expired"
    _, foreign = service.keys.create("stranger")
    assert find_code(service, foreign) == "invalid_key"
    with pytest.raises(InvalidInput, match="There is no key"):
        service.keys.revoke("00000000")


def test_revocation_reaches_other_replicas(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replica rejects a revoked key as soon as its short memory ends."""
    replica = open_service(tmp_path)
    key, text = service.keys.create("app")
    assert find_code(replica, text) == "ok"
    service.keys.revoke(key.prefix)
    monkeypatch.setattr("scoreshield.service.access._CACHE_SECONDS", 0.0)
    assert find_code(replica, text) == "key_revoked"


def test_rotation_with_overlap(service: Service) -> None:
    """Both keys are valid for the overlap; then the old one ends. A replaced key has one successor."""
    old, text = service.keys.create("app", collections=["docs"], actions=["search"])
    fresh, new = service.keys.rotate(old.prefix, overlap=timedelta(hours=1))
    assert find_code(service, text) == find_code(service, new) == "ok"
    later = datetime.now(UTC) + timedelta(hours=2)
    assert (find_code(service, text, now=later), find_code(service, new, now=later)) == ("key_expired", "ok")
    assert (fresh.collections, fresh.actions) == (("docs",), ("search",))
    with pytest.raises(InvalidInput, match="replaced"):
        service.keys.rotate(old.prefix, overlap=timedelta(hours=1))
    listed = {key.prefix: key for key in service.keys.list_keys()}
    assert listed[old.prefix].successor == fresh.prefix
    assert fresh.expires is None
    end = datetime.now(UTC) + timedelta(days=30)
    assert service.keys.rotate(fresh.prefix, overlap=timedelta(0), expires=end)[0].expires == end


def test_key_is_narrower_than_its_caller(tmp_path: Path) -> None:
    """A key opens its collections and actions alone, and never more than the policy grants."""
    service = open_service(tmp_path)
    with TestClient(create_app(service)) as client:
        body = {"query": make_query(1)}
        narrow = make_headers(service, actions=["matches"])
        assert client.post(SEARCH, json=body, headers=narrow).json()["code"] == "action_not_allowed"
        assert client.get(FACTS, headers=narrow).status_code == 200
        elsewhere = make_headers(service, collections=["other"])
        assert client.get(FACTS, headers=elsewhere).json()["code"] == "unknown_collection"
        assert client.get("/v1/collections", headers=elsewhere).json() == {"collections": []}
        wide = make_headers(service, actions=["entries", "search"])
        assert client.get(f"{FACTS}/entries", headers=wide).json()["code"] == "action_not_allowed"
        officer = make_headers(service, "officer")
        assert client.post(SEARCH, json=body, headers=officer).json()["code"] == "action_not_allowed"
        assert client.get(f"{FACTS}/entries", headers=officer).status_code == 200
        for path in ("/v1/collections", FACTS, f"{FACTS}/budget", f"{FACTS}/index", "/v1/signing-keys"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (401, "missing_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        key = narrow["authorization"].removeprefix("Bearer ")
        assert client.get(FACTS, headers={"api-key": key}).status_code == 200
        assert client.get(FACTS, headers={"authorization": f"Basic {key}"}).status_code == 401


def test_expired_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the end of a caller's access, none of its keys is valid."""
    reader = {"role": "reader", "collections": {"docs": {"actions": ["search"]}}, "expires": "2998-01-01"}
    service = open_service(tmp_path, write_policy(callers={"guest": reader}))
    _, text = service.keys.create("guest")
    assert find_code(service, text) == "ok"
    guest = service.policy.callers["guest"].model_copy(update={"expires": datetime(2020, 1, 1, tzinfo=UTC)})
    monkeypatch.setitem(service.policy.callers, "guest", guest)
    assert find_code(service, text) == "caller_expired"


def test_rate_limit() -> None:
    """A bucket of three refills evenly; Retry-After says when."""
    now = [0.0]
    limiter, rate = RateLimiter(lambda: now[0]), RatePolicy(requests=3, seconds=6)
    for _ in range(3):
        limiter.count("a", rate)
    with pytest.raises(ServiceProblem) as caught:
        limiter.count("a", rate)
    assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "2")
    limiter.count("b", rate)
    now[0] += 2.0
    limiter.count("a", rate)
    with pytest.raises(ServiceProblem):
        limiter.count("a", rate)


def test_rate_limit_over_http(tmp_path: Path) -> None:
    """A key that is too fast gets 429 with Retry-After, and is not charged."""
    slow = {
        "role": "reader",
        "collections": {"docs": {"actions": ["search"]}},
        "rate": {"requests": 2, "seconds": 3600},
    }
    service = open_service(tmp_path, write_policy(callers={"slow": slow}))
    with TestClient(create_app(service), headers=make_headers(service, "slow")) as client:
        answers = [client.post(SEARCH, json={"query": make_query(seed)}) for seed in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert int(answers[3].headers["retry-after"]) >= 1
    assert service.collections["docs"].account.spent == 2.0


def test_unknown_key_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests with an invented key do not each read the database, and do not fill the memory."""
    service = open_service(tmp_path)
    reads: list[str] = []
    read = service.database.read
    monkeypatch.setattr(service.database, "read", lambda *rest, **values: reads.append("") or read(*rest, **values))
    text = make_key_text()[1]
    for _ in range(3):
        with pytest.raises(ServiceProblem):
            service.keys.authenticate(text)
    assert len(reads) == 1
    monkeypatch.setattr("scoreshield.service.access._MOST_CACHED", 3)
    for _ in range(5):
        with pytest.raises(ServiceProblem):
            service.keys.authenticate(make_key_text()[1])
    assert len(service.keys._cache) <= 3
    known = service.keys.create("app")[1]
    assert service.keys.authenticate(known).caller == "app"
    service.check_databases()
    before = len(reads)
    service.check_databases()
    assert len(reads) == before
