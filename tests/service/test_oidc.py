"""Sign-in by OpenID Connect against a small provider: what it signs for this browser counts, and nothing else."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")
pytest.importorskip("joserfc", reason="the 'oidc' extra is not installed")

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from service_support import TestClient, open_service, serve, write_policy

from scoreshield.errors import InvalidInput
from scoreshield.service import oidc as oidc_module
from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.oidc import is_protected

KEY = RSAKey.generate_key(2048, {"kid": "one", "alg": "RS256", "use": "sig"})
SECRET = "client secret/+"
CLAIMS = {"sub": "17", "email": "Ada@example.org", "email_verified": True, "groups": ["staff"]}


@dataclass
class Issuer:
    """A provider of identities. Tests change what it says and how it signs.

    Attributes:
        address: Its name, which is where it listens.
        codes: For each code that it gave out, the PKCE challenge and the claims.
        sign: Signs claims.
        keys: The keys that it publishes.
        changes: Members of its description that are other than they should be.
        requests: The paths that were asked for.
    """

    address: str = ""
    codes: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    sign: Callable[[dict[str, Any]], Any] = lambda claims: jwt.encode({"alg": "RS256", "kid": "one"}, claims, KEY)
    keys: list[Any] = field(default_factory=lambda: [KEY])
    changes: dict[str, Any] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def make_app(self) -> FastAPI:
        """Make the paths of the provider, but for the page where people sign in: the tests stand for it."""
        app = FastAPI()

        @app.get("/.well-known/openid-configuration")
        def describe() -> dict[str, Any]:
            self.requests.append("description")
            places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            facts = {name: f"{self.address}/{place}" for name, place in places.items()}
            return {"issuer": self.address, **facts, **self.changes}

        @app.get("/keys")
        def publish() -> dict[str, Any]:
            self.requests.append("keys")
            return {"keys": [key.as_dict(private=False) for key in self.keys]}

        @app.post("/token")
        async def exchange(request: Request) -> Response:
            self.requests.append("token")
            fields = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
            pair = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
            assert pair == "scoreshield:client+secret%2F%2B"
            challenge, claims = self.codes.pop(fields["code"], ("", {}))
            digest = hashlib.sha256(fields["code_verifier"].encode()).digest()
            is_right = base64.urlsafe_b64encode(digest).decode().rstrip("=") == challenge
            if not is_right or fields["redirect_uri"] != "https://scores.example.org/sign-in/oidc/callback":
                return JSONResponse({"error": "invalid_grant"}, 400)
            return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": self.sign(claims)})

        return app

    def approve(self, location: str, **claims: Any) -> dict[str, str]:
        """Let a person sign in at the provider; return what the browser brings back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}
        assert location.startswith(f"{self.address}/authorize?")
        assert (asked["code_challenge_method"], asked["response_type"]) == ("S256", "code")
        assert asked["client_id"] == "scoreshield"
        now = int(time.time())
        facts = {"iss": self.address, "aud": asked["client_id"], "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        code = f"code{len(self.codes)}-{len(self.requests)}"
        self.codes[code] = (asked["code_challenge"], {**CLAIMS, **facts, **claims})
        return {"code": code, "state": asked["state"]}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    with serve_app(made) as address:
        made.address = address
        yield made


@contextlib.contextmanager
def serve_app(issuer: Issuer) -> Iterator[str]:
    with serve(None, issuer.make_app()) as address:  # type: ignore[arg-type]
        yield address


def open_with(folder: Path, provider: Issuer, /, **changes: Any) -> Service:
    (folder / "secret").write_text(f"{SECRET}\n")
    content = write_policy()
    content["installation"] |= {
        "behind_proxy": True,
        "oidc": {
            "issuer": provider.address,
            "client_id": "scoreshield",
            "client_secret_file": "secret",
            "public_url": "https://scores.example.org",
            "title": "Example & Co",
            **changes,
        },
    }
    return open_service(folder, content)


def make_client(service: Service) -> TestClient:
    return TestClient(create_app(service), follow_redirects=False, base_url="https://testserver")


@pytest.fixture
def service(tmp_path: Path, issuer: Issuer) -> Service:
    service = open_with(tmp_path, issuer)
    service.people.create("ada@example.org", "officer", ["docs"])
    return service


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with make_client(service) as client:
        yield client


def go(client: TestClient, issuer: Issuer, back: dict[str, str] | None = None, **claims: Any) -> tuple[int, str]:
    """Sign in at the provider and come back; return the status, and who is signed in then."""
    location = client.get("/sign-in/oidc", params={"next": "/dashboard/keys"}).headers["location"]
    answer = client.get("/sign-in/oidc/callback", params={**issuer.approve(location, **claims), **(back or {})})
    token = client.cookies.get("__Host-scoreshield-session")
    service: Service = client.app.state.service  # type: ignore[attr-defined]
    facts = None if token is None else service.people.find_session(token)
    assert (answer.status_code == 303) == (facts is not None)
    assert answer.headers.get("location", "/dashboard/keys") == "/dashboard/keys"
    return answer.status_code, "" if facts is None else f"{facts.name} {facts.role}"


def test_person_signs_in(client: TestClient, service: Service, issuer: Issuer) -> None:
    """A person of the table signs in with its role; cookies are lax, so that they survive the way back."""
    page = client.get("/sign-in", params={"next": "/dashboard/keys"})
    assert 'href="/sign-in/oidc?next=/dashboard/keys"' in page.text
    assert "Example &amp; Co" in page.text
    assert go(client, issuer) == (303, "ada@example.org officer")
    assert service.events.list_events(most=1)[0].kind == "signed in"
    started = client.get("/sign-in/oidc")
    parts = started.headers["set-cookie"].lower().split("; ")
    assert parts[0].startswith("__host-scoreshield-oidc=")
    assert {"secure", "httponly", "samesite=lax", "path=/"} <= set(parts)


def sign_with(key: Any, **header: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda claims: jwt.encode({"alg": "RS256", "kid": "one", **header}, claims, key, algorithms=[header["alg"]])


def write_parts(*parts: dict[str, Any]) -> str:
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts]
    return ".".join(part.decode().rstrip("=") for part in encoded)


def write_unsigned(claims: dict[str, Any]) -> str:
    return write_parts({"alg": "none"}, claims) + "."


def sign_by_secret(secret: bytes) -> Callable[[dict[str, Any]], str]:
    """Sign by a secret, without the library, which protects from some of these mistakes."""

    def sign(claims: dict[str, Any]) -> str:
        content = write_parts({"alg": "HS256", "kid": "one"}, claims)
        value = base64.urlsafe_b64encode(hmac.digest(secret, content.encode(), "sha256")).decode().rstrip("=")
        return f"{content}.{value}"

    return sign


NOW = int(time.time())
WRONG_CLAIMS: dict[str, dict[str, Any]] = {
    "nonce of another sign-in": {"nonce": "0" * 64},
    "no nonce": {"nonce": None},
    "nonce with other letters": {"nonce": "é" * 64},
    "another audience": {"aud": "other"},
    "part of the audience": {"aud": "scoreshield2"},
    "audience of several without a party": {"aud": ["scoreshield", "other"]},
    "party of another": {"aud": ["scoreshield", "other"], "azp": "other"},
    "one audience for another party": {"azp": "other"},
    "another issuer": {"iss": "https://evil.example"},
    "no issuer": {"iss": None},
    "expired": {"exp": NOW - 120, "iat": NOW - 600},
    "no end": {"exp": None},
    "end as a text": {"exp": "tomorrow"},
    "from the future": {"iat": NOW + 10**6},
    "not valid yet": {"nbf": NOW + 10**6},
    "no subject": {"sub": None},
    "e-mail that is not verified": {"email_verified": False},
    "e-mail verified by a word": {"email_verified": "true"},
    "no e-mail": {"email": None},
    "e-mail as a list": {"email": ["ada@example.org"]},
    "another person": {"email": "eve@example.org"},
    "header in a name": {"email": "ada@example.org\r\nx: y"},
}


@pytest.mark.parametrize("claims", WRONG_CLAIMS.values(), ids=WRONG_CLAIMS.keys())
def test_wrong_claims(client: TestClient, service: Service, issuer: Issuer, claims: dict[str, Any]) -> None:
    """A token for someone else, another time, another browser or another service begins no session."""
    sign = issuer.sign
    issuer.sign = lambda found: sign({name: value for name, value in found.items() if value is not None})
    assert go(client, issuer, **claims) == (401, "")
    event = service.events.list_events(most=1)[0]
    assert (event.kind, event.subject) == ("sign-in failed", "")
    assert go(client, issuer) == (303, "ada@example.org officer")


OTHER = RSAKey.generate_key(2048, {"kid": "one"})
CURVE = ECKey.generate_key("P-256", {"kid": "curve"})
WRONG_SIGNATURES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "unsigned": write_unsigned,
    "another key of the same name": sign_with(OTHER, alg="RS256"),
    "another kind of key": sign_with(CURVE, alg="ES256"),
    "public key as a shared secret": sign_by_secret(KEY.as_pem(private=False)),
    "client secret as a shared secret": sign_by_secret(SECRET.encode()),
    "key in the header": sign_with(OTHER, alg="RS256", jwk=OTHER.as_dict(private=False)),
    "unknown key": sign_with(OTHER, alg="RS256", kid="two"),
    "other content": lambda claims: sign_with(KEY, alg="RS256")(claims)[:-8] + "AAAAAAAA",
    "no token": lambda _: None,
    "empty": lambda _: "",
    "two parts": lambda _: "a.b",
    "a number": lambda _: 3,
    "letters": lambda _: "é.é.é",
}


@pytest.mark.parametrize("sign", WRONG_SIGNATURES.values(), ids=WRONG_SIGNATURES.keys())
def test_wrong_signatures(client: TestClient, issuer: Issuer, sign: Callable[[dict[str, Any]], Any]) -> None:
    """A token that the provider did not sign, or by an algorithm that anyone could use, begins no session."""
    issuer.sign = sign
    assert go(client, issuer) == (401, "")


def test_right_tokens(client: TestClient, issuer: Issuer) -> None:
    """A token for several services that names this one as its party, and one signed by a curve, are fine."""
    assert go(client, issuer, aud=["other", "scoreshield"], azp="scoreshield")[0] == 303
    client.cookies.clear()
    now = int(time.time())
    assert go(client, issuer, iat=now + 30, exp=now + 300)[0] == 303  # clocks differ a little
    client.cookies.clear()


def test_signature_by_a_curve(client: TestClient, issuer: Issuer) -> None:
    issuer.keys, issuer.sign = [OTHER, CURVE], sign_with(CURVE, alg="ES256", kid="curve")
    assert go(client, issuer) == (303, "ada@example.org officer")


def test_state_and_cookie(
    client: TestClient, service: Service, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser finishes only what it began itself, once, and within ten minutes."""
    callback = "/sign-in/oidc/callback"
    location = client.get("/sign-in/oidc").headers["location"]
    brought = issuer.approve(location)
    with make_client(service) as victim:  # the link of an attacker who has signed in, opened by someone else
        service.is_ready = True
        assert victim.get(callback, params=brought).status_code == 401
        victim.get("/sign-in/oidc")
        assert victim.get(callback, params=brought).status_code == 401
        assert "__Host-scoreshield-session" not in victim.cookies
    service.is_ready = True
    assert go(client, issuer, {"state": ""}) == (401, "")
    assert go(client, issuer, {"state": brought["state"]}) == (401, "")
    assert go(client, issuer, {"code": ""}) == (401, "")
    assert go(client, issuer, {"code": "unknown"}) == (401, "")
    assert go(client, issuer, {"iss": "https://evil.example"}) == (401, "")
    head, moment, page = brought["state"].split(".")
    for moment_of in (str(int(moment) + 1), "x", "-1", "9" * 400):  # the last one has no float
        assert go(client, issuer, {"state": f"{head}.{moment_of}.{page}"}) == (401, "")
    for state in (f"{head}.{moment}.Lw==", "é.1.é"):
        assert go(client, issuer, {"state": state}) == (401, "")
    assert go(client, issuer, {"iss": issuer.address})[0] == 303
    client.cookies.clear()
    location = client.get("/sign-in/oidc").headers["location"]
    brought = issuer.approve(location)
    assert client.get(callback, params=brought).status_code == 303
    assert client.get(callback, params=brought).status_code == 401  # the cookie is gone, and the code too
    client.cookies.clear()
    location = client.get("/sign-in/oidc").headers["location"]
    monkeypatch.setattr(oidc_module, "_PATIENCE", -1)
    assert client.get(callback, params=issuer.approve(location)).status_code == 401


def test_grants_by_claims(tmp_path: Path, issuer: Issuer) -> None:
    """A group of the provider gives a role. Who leaves the group loses it, with all sessions."""
    grants = [
        {"claim": "groups", "value": "officers", "role": "officer", "collections": ["docs"]},
        {"claim": "groups", "value": "readers", "role": "reader"},
    ]
    service = open_with(tmp_path, issuer, grants=grants)
    with make_client(service) as client:
        assert go(client, issuer) == (401, "")
        assert service.people.list_people() == []
        assert go(client, issuer, groups=["staff", "officers"]) == (303, "ada@example.org officer")
        (ada,) = service.people.list_people()
        assert (ada.collections, ada.has_password) == (("docs",), False)
        first = client.cookies["__Host-scoreshield-session"]
        client.cookies.clear()
        assert go(client, issuer, groups="readers") == (303, "ada@example.org reader")
        assert service.people.find_session(first) is None
        second = client.cookies["__Host-scoreshield-session"]
        client.cookies.clear()
        assert go(client, issuer, groups=[["officers"], {"officers": 1}, 3]) == (401, "")
        assert service.people.find_session(second) is None
        service.people.disable("ada@example.org")
        assert go(client, issuer, groups=["officers"]) == (401, "")


def test_person_with_a_password_is_not_taken_over(tmp_path: Path, issuer: Issuer) -> None:
    """A provider whose users choose their names cannot sign them in as someone who has a password here."""
    grants = [{"claim": "groups", "value": "staff", "role": "reader"}]
    service = open_with(tmp_path, issuer, person_claim="preferred_username", grants=grants)
    service.people.create("admin", "admin", None, "a quiet lake at noon")
    with make_client(service) as client:
        assert go(client, issuer, preferred_username="admin") == (401, "")
        assert go(client, issuer, preferred_username="bob") == (303, "bob reader")


@pytest.mark.parametrize(
    ("claim", "name", "ending"),
    [
        ("email", "Ada@Example.org", (303, "ada@example.org reader")),
        ("email", "Ada@Example.or\u212a", (401, "")),
        ("preferred_username", "Ada", (401, "")),
        ("oid", "aB1", (401, "")),
        ("oid", "ab1", (303, "ab1 reader")),
    ],
    ids=["email", "Kelvin sign", "user name", "subject", "small letters"],
)
def test_capitals_of_names(tmp_path: Path, issuer: Issuer, claim: str, name: str, ending: tuple[int, str]) -> None:
    """Two people whose names differ by capitals are never one person here. Addresses of e-mail have no capitals."""
    grants = [{"claim": "groups", "value": "staff", "role": "reader"}]
    service = open_with(tmp_path, issuer, person_claim=claim, grants=grants)
    with make_client(service) as client:
        assert go(client, issuer, **{claim: name}) == ending


def test_new_key_of_the_provider(client: TestClient, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is new at the provider is fetched, at most once in a while; the description is kept."""
    assert go(client, issuer)[0] == 303
    fresh = RSAKey.generate_key(2048, {"kid": "two"})
    issuer.keys, issuer.sign = [fresh], sign_with(fresh, alg="RS256", kid="two")
    client.cookies.clear()
    assert go(client, issuer) == (401, "")  # the keys were fetched just now
    assert issuer.requests.count("keys") == 1
    monkeypatch.setattr(oidc_module, "_KEY_PAUSE", 0.0)
    assert go(client, issuer)[0] == 303
    assert (issuer.requests.count("keys"), issuer.requests.count("description")) == (2, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": None},
        {"padding": "x" * 2**20},
    ],
)
def test_wrong_description(client: TestClient, issuer: Issuer, changes: dict[str, Any]) -> None:
    """A description of another provider, with plain HTTP, or too large is not used."""
    issuer.changes = changes
    answer = client.get("/sign-in/oidc")
    assert (answer.status_code, "location" in answer.headers) == (503, False)
    assert "does not answer as it should" in answer.text


def test_provider_that_does_not_answer(tmp_path: Path) -> None:
    """Without the provider, passwords still work."""
    service = open_with(tmp_path, Issuer("http://127.0.0.1:9"))
    service.people.create("ada", "reader", (), "a quiet lake at noon")
    with make_client(service) as client:
        assert client.get("/sign-in/oidc").status_code == 503
        assert client.get("/sign-in").status_code == 200
        assert client.get("/sign-in/oidc/callback?code=1&state=2").status_code == 401


def test_policy_of_a_provider(tmp_path: Path) -> None:
    """Addresses without TLS, missing files and unknown collections are contradictions."""
    cases: dict[str, dict[str, Any]] = {
        "issuer must begin with https": {"issuer": "http://login.example.org"},
        "public_url must begin with https": {"public_url": "http://scores.example.org"},
        r"must have no \?": {"issuer": "https://login.example.org?x=1"},
        "does not exist": {"client_secret_file": "missing"},
        "must hold openid": {"scopes": ["email"]},
        "does not serve": {"grants": [{"claim": "a", "value": "b", "role": "reader", "collections": ["other"]}]},
        "grants.0.role": {"grants": [{"claim": "a", "value": "b", "role": "owner"}]},
    }
    for sentence, changes in cases.items():
        with pytest.raises(InvalidInput, match=sentence):
            open_with(tmp_path, Issuer("https://login.example.org"), **changes)
    assert is_protected("https://a/b")
    assert not is_protected("http://a/b")
    assert not is_protected("http://127.0.0.1.evil.example/")


def test_paths_are_there_only_with_a_provider(tmp_path: Path) -> None:
    with TestClient(create_app(open_service(tmp_path))) as client:
        assert client.get("/sign-in/oidc").status_code == 404
        assert "oidc" not in client.get("/sign-in").text


def test_letters_that_become_those_of_another_name(client: TestClient, service: Service, issuer: Issuer) -> None:
    """The Kelvin sign is a k in small letters; it names no one, and the letter K itself does."""
    service.people.create("kim@example.org", "admin", None)
    assert go(client, issuer, email="\u212aim@example.org") == (401, "")
    assert go(client, issuer, email="Kim@example.org") == (303, "kim@example.org admin")


def test_made_up_returns_write_no_events(client: TestClient, service: Service) -> None:
    """Who never began a sign-in cannot fill the table of events."""
    for _ in range(5):
        assert client.get("/sign-in/oidc/callback", params={"code": "x", "state": "y"}).status_code == 401
    assert "sign-in failed" not in [event.kind for event in service.events.list_events(most=10)]
