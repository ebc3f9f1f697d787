"""Sign-in by OpenID Connect: the authorization code flow with PKCE, a state and a nonce.

The provider says who someone is. The policy and the table of people say what this person may do, and by default this is
nothing. What a sign-in needs to remember lies in a cookie of the browser, from which the installation key derives the
state, the nonce and the PKCE verifier. So any replica can finish what another one began.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from scoreshield.errors import InvalidInput
from scoreshield.service.core import Service
from scoreshield.service.installation import InstallationKey
from scoreshield.service.people import ProviderGrant
from scoreshield.service.policy import OidcPolicy
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.sign_in import (
    OIDC_CALLBACK,
    OIDC_START,
    begin_session,
    check_next,
    find_address,
    make_sign_in_page,
    read_cookie,
    write_cookie,
)

#: Signatures by a private key of the provider. A secret that both sides know, or no signature, is not among them.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
_COOKIE = "scoreshield-oidc"
#: How many seconds a person has to sign in at the provider.
_PATIENCE = 600
#: How far the clocks of the provider and the service may differ, in seconds.
_LEEWAY = 60
#: How many seconds the description and the keys of the provider are kept, and how often unknown keys are looked for.
_KEEP, _KEY_PAUSE = 3600.0, 60.0
_LARGEST = 2**20
_TIMEOUT = 10.0
#: How many requests may wait for the provider at the same time, so that a slow one takes no threads from queries.
_CALLS = 4
T = TypeVar("T")
_LOCAL = ("127.0.0.1", "::1", "localhost")


class OidcProvider:
    """A provider of identities, as the policy names it.

    Args:
        policy: The part of the policy.
        key: The secrets of the installation.
        client: Sends requests to the provider.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        policy: OidcPolicy,
        key: InstallationKey,
        *,
        client: httpx.Client | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.policy, self._key, self._clock = policy, key, clock
        self._client = httpx.Client(timeout=_TIMEOUT) if client is None else client
        self._secret = None if policy.client_secret_file is None else _read_secret(policy)
        self._facts: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._lock = threading.Lock()

    def make_address(self, secret: str, page: str) -> str:
        """Make the address at the provider that a browser is sent to.

        Args:
            secret: The secret of the browser's cookie.
            page: The page to show afterwards.
        """
        verifier = self._derive_verifier(secret)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode("ascii")).digest()).decode().rstrip("=")
        fields = {
            "response_type": "code",
            "client_id": self.policy.client_id,
            "redirect_uri": self._name_callback(),
            "scope": " ".join(self.policy.scopes),
            "state": self._write_state(secret, page, int(self._clock())),
            "nonce": self._key.compute_tag("oidc nonce", secret),
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        address = self._find_facts()["authorization_endpoint"]
        return f"{address}{'&' if '?' in address else '?'}{urlencode(fields)}"

    def check_state(self, secret: str, state: str) -> str:
        """Check that a browser comes back from a sign-in that it began here; return the page to show.

        Raises:
            ServiceProblem: The state belongs to another browser, or is too old.
        """
        _, _, rest = state.partition(".")
        moment, _, encoded = rest.partition(".")
        try:
            begin = int(moment)
            page = base64.urlsafe_b64decode(encoded.encode("ascii")).decode("ascii")
        except ValueError:
            raise ServiceProblem("sign_in_failed") from None
        right = self._write_state(secret, page, begin)
        is_own = hmac.compare_digest(right.encode("ascii"), state.encode("utf-8", "replace"))
        # Whole numbers are compared: one of hundreds of digits, which anyone can send, has no float.
        if not (is_own and 0 <= int(self._clock()) - begin <= _PATIENCE):
            raise ServiceProblem("sign_in_failed")
        return check_next(page)

    def redeem(self, secret: str, code: str) -> dict[str, Any]:
        """Exchange a code for the claims about a person, and check them.

        Raises:
            ServiceProblem: The provider does not answer, or the token is not signed by it, for this service, for this
                browser and for now.
        """
        answer = self._exchange(secret, code)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise ServiceProblem("sign_in_failed")
        claims = self._verify(token)
        nonce = claims.get("nonce")
        right = self._key.compute_tag("oidc nonce", secret)
        if not isinstance(nonce, str) or not hmac.compare_digest(right, nonce.encode("ascii", "replace").decode()):
            raise ServiceProblem("sign_in_failed")
        return claims

    def find_grant(self, claims: Mapping[str, Any]) -> ProviderGrant:
        """Find the name of a person by the claims, and what the policy grants for them.

        Raises:
            ServiceProblem: The claims name no one, or by an address of e-mail that the provider did not verify.
        """
        name = claims.get(self.policy.person_claim)
        is_email = self.policy.person_claim == "email"
        if not isinstance(name, str) or (is_email and claims.get("email_verified") is not True):
            raise ServiceProblem("sign_in_failed")
        if is_email and name.isascii():  # other letters may become those of another address in small letters
            # In any other claim, two people may differ in capitals alone. Such a name is not one of this service.
            name = name.lower()
        for grant in self.policy.grants:
            value = claims.get(grant.claim)
            values = value if isinstance(value, list) else [value]
            if grant.value in [one for one in values if isinstance(one, str)]:
                return ProviderGrant(name, grant.role, grant.collections)
        return ProviderGrant(name, None, ())

    def is_issuer(self, name: str) -> bool:
        """Return whether this is the name of the provider."""
        return name == self.policy.issuer

    def _verify(self, token: str) -> dict[str, Any]:
        try:
            try:
                found = jwt.decode(token, self._find_keys(), algorithms=ALGORITHMS)
            except InvalidKeyIdError:  # the provider may have a new key
                found = jwt.decode(token, self._find_keys(is_renewed=True), algorithms=ALGORITHMS)
            claims = found.claims
            needs: dict[str, Any] = {name: {"essential": True} for name in ("iss", "sub", "aud", "exp", "iat")}
            jwt.JWTClaimsRegistry(now=int(self._clock()), leeway=_LEEWAY, **needs).validate(claims)
        except (JoseError, ValueError, TypeError, KeyError, RecursionError):
            raise ServiceProblem("sign_in_failed") from None
        audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        own = self.policy.client_id
        # A token for several services names the one that asked for it.
        is_own = own in audience and claims.get("azp", own if len(audience) == 1 else None) == own
        if claims["iss"] != self.policy.issuer or not is_own:
            raise ServiceProblem("sign_in_failed")
        return claims

    def _exchange(self, secret: str, code: str) -> dict[str, Any]:
        facts = self._find_facts()
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._name_callback(),
            "code_verifier": self._derive_verifier(secret),
            "client_id": self.policy.client_id,
        }
        headers = {}
        if self._secret is not None:
            ways = facts.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
            if "client_secret_basic" in ways:
                pair = f"{quote_plus(self.policy.client_id)}:{quote_plus(self._secret)}"
                headers["authorization"] = f"Basic {base64.b64encode(pair.encode('ascii')).decode('ascii')}"
            else:
                fields["client_secret"] = self._secret
        return self._request("POST", facts["token_endpoint"], content=urlencode(fields), headers=headers)

    def _find_facts(self) -> dict[str, Any]:
        """Find the description of the provider. It must be of this provider, and name addresses with TLS."""
        with self._lock:
            if self._facts is not None and self._clock() - self._facts[0] < _KEEP:
                return self._facts[1]
        place = f"{self.policy.issuer.rstrip('/')}/.well-known/openid-configuration"
        facts = self._request("GET", place)
        needed = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        if facts.get("issuer") != self.policy.issuer or not all(is_protected(facts.get(name)) for name in needed):
            raise ServiceProblem("provider_unavailable")
        with self._lock:
            self._facts = (self._clock(), facts)
        return facts

    def _find_keys(self, *, is_renewed: bool = False) -> KeySet:
        with self._lock:
            known = self._keys
        if known is not None and self._clock() - known[0] < (_KEY_PAUSE if is_renewed else _KEEP):
            return known[1]
        found: Any = self._request("GET", self._find_facts()["jwks_uri"])
        try:
            keys = KeySet.import_key_set(found)
        except (JoseError, ValueError, TypeError, KeyError):
            raise ServiceProblem("provider_unavailable") from None
        with self._lock:
            self._keys = (self._clock(), keys)
        return keys

    def _request(self, method: str, address: str, **settings: Any) -> dict[str, Any]:
        """Send a request and read a JSON object, which must not be large."""
        headers = {"accept": "application/json", **settings.pop("headers", {})}
        if method == "POST":
            headers["content-type"] = "application/x-www-form-urlencoded"
        parts, size = [], 0
        try:
            with self._client.stream(
                method, address, headers=headers, follow_redirects=False, timeout=_TIMEOUT, **settings
            ) as answer:
                for part in answer.iter_bytes():
                    size += len(part)
                    if size > _LARGEST:
                        raise ServiceProblem("provider_unavailable")
                    parts.append(part)
                status = answer.status_code
            content = json.loads(b"".join(parts))
        except (httpx.HTTPError, ValueError, RecursionError):
            raise ServiceProblem("provider_unavailable") from None
        if status == 400 and method == "POST":  # the provider does not know this code
            raise ServiceProblem("sign_in_failed")
        if status != 200 or not isinstance(content, dict):
            raise ServiceProblem("provider_unavailable")
        return content

    def _derive_verifier(self, secret: str) -> str:
        return base64.urlsafe_b64encode(self._key.derive_secret("oidc verifier", secret)).decode("ascii").rstrip("=")

    def _write_state(self, secret: str, page: str, begin: int) -> str:
        tag = self._key.compute_tag("oidc state", secret, page, str(begin))
        return f"{tag}.{begin}.{base64.urlsafe_b64encode(page.encode('ascii')).decode('ascii')}"

    def _name_callback(self) -> str:
        return self.policy.public_url.rstrip("/") + OIDC_CALLBACK


def is_protected(address: object) -> bool:
    """Return whether an address has TLS, or is on this computer."""
    if not isinstance(address, str):
        return False
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL)


def make_oidc_router(service: Service, provider: OidcProvider) -> APIRouter:
    """Make the two paths of a sign-in at the provider."""
    router = APIRouter(include_in_schema=False)
    limiter: CapacityLimiter | None = None

    async def call(work: Callable[..., T], *arguments: Any) -> T:
        """Run in a thread what may wait for the provider."""
        nonlocal limiter
        limiter = CapacityLimiter(_CALLS) if limiter is None else limiter
        return await to_thread.run_sync(work, *arguments, limiter=limiter)

    @router.get(OIDC_START)
    async def start(request: Request, next: str = "") -> Response:
        """Send the browser to the provider."""
        secret = secrets.token_urlsafe(32)
        try:
            address = await call(provider.make_address, secret, check_next(next))
        except ServiceProblem as problem:
            return make_sign_in_page(request, service, check_next(next), problem)
        response = RedirectResponse(address, 303)
        write_cookie(response, service, _COOKIE, secret, _PATIENCE)
        return response

    @router.get(OIDC_CALLBACK)
    async def finish(request: Request, code: str = "", state: str = "", iss: str = "") -> Response:
        """Take a browser back from the provider, and begin a new session."""
        page, address, is_begun = check_next(""), find_address(request), False
        try:
            secret = read_cookie(request, _COOKIE)
            # A provider that names itself must be this one, so that no answer of another one is mixed in.
            if secret is None or not code or len(code) > 4096 or (iss and not provider.is_issuer(iss)):
                raise ServiceProblem("sign_in_failed")
            page = provider.check_state(secret, state)
            is_begun = True
            claims = await call(provider.redeem, secret, code)
            grant = provider.find_grant(claims)
            token = await run_in_threadpool(service.people.admit, grant, address)
        except ServiceProblem as problem:
            if problem.code == "sign_in_failed":
                if is_begun:  # anyone could fill the table of events otherwise
                    await run_in_threadpool(service.people.record_failure, address)
                problem = ServiceProblem("sign_in_failed", "The provider did not name a person who may sign in here.")
            response = make_sign_in_page(request, service, page, problem)
        else:
            response = await begin_session(request, service, token, page)
        write_cookie(response, service, _COOKIE, "", 0)
        return response

    return router


def _read_secret(policy: OidcPolicy) -> str:
    assert policy.client_secret_file is not None
    try:
        text = policy.client_secret_file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    if not text:
        raise InvalidInput(f"The client secret {policy.client_secret_file} cannot be read.")
    return text
