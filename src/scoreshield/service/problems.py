"""The errors of the service: a stable code, a status and one sentence each, as application/problem+json.

A sentence never holds a value of a request, a row, a path or a message of a lower layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scoreshield.errors import ScoreShieldError

MEDIA_TYPE = "application/problem+json"
#: For each code, the status and the sentence. Codes keep their meaning.
CODES: dict[str, tuple[int, str]] = {
    "invalid_json": (400, "The body is not valid JSON."),
    "invalid_request": (422, "The request does not have the form that /openapi.json describes."),
    "wrong_dimension": (422, "The query does not have the dimension of the collection."),
    "zero_query": (422, "The query is the zero vector, which has no direction."),
    "no_embedder": (422, "This collection has no embedder, so a query must be a vector."),
    "unknown_field": (422, "The filter names a field that is not public in this collection."),
    "k_too_large": (422, "The request asks for more records than the policy allows."),
    "too_many_queries": (422, "The batch holds more queries than the policy allows."),
    "body_too_large": (413, "The body is larger than the policy allows."),
    "head_too_large": (431, "The path and the headers are larger than the policy allows."),
    "body_too_slow": (408, "The body did not arrive in the time that the policy allows."),
    "body_incomplete": (400, "The connection ended before the whole body arrived."),
    "missing_key": (401, "Give an API key: in the header api-key, or in the header Authorization as Bearer ss_..."),
    "invalid_key": (401, "The API key is not valid."),
    "key_expired": (401, "The API key has expired."),
    "key_revoked": (401, "The API key was revoked."),
    "caller_expired": (401, "The access of this caller has expired."),
    "not_signed_in": (401, "Sign in first."),
    "sign_in_failed": (401, "The name or the password is wrong."),
    "too_many_attempts": (429, "There were too many attempts to sign in; wait some minutes."),
    "role_not_allowed": (403, "Your role does not allow this."),
    "invalid_form_token": (403, "The form is too old, or comes from another site; load the page again."),
    "invalid_form": (422, "The form cannot be read."),
    "unknown_collection": (404, "There is no such collection, or this key does not open it."),
    "unknown_key": (404, "There is no API key of this prefix, or you may not manage it."),
    "unknown_caller": (422, "The policy has no caller of this name."),
    "key_ended": (409, "The API key is revoked, expired or replaced; create another one."),
    "grant_too_wide": (403, "The policy does not grant this to the caller, or you may not grant it."),
    "unknown_entry": (404, "There is no such entry for this collection."),
    "not_found": (404, "There is nothing at this path."),
    "method_not_allowed": (405, "This path does not take this method."),
    "action_not_allowed": (403, "This key does not allow this action on this collection."),
    "not_offered": (
        403,
        "The service answers searches for a vector with released scores, and shows no more of its records.",
    ),
    "budget_exhausted": (403, "The privacy budget of the collection does not cover this request."),
    "allowance_exhausted": (403, "The allowance of this caller does not cover this request."),
    "rate_limited": (429, "This key sends requests faster than the policy allows."),
    "idempotency_conflict": (422, "This Idempotency-Key was used with another request."),
    "invalid_idempotency_key": (400, "An Idempotency-Key has 1 to 200 printable ASCII characters."),
    "answer_lost": (
        410,
        "The answer was charged but not computed before the collection or its mechanism changed, so its budget is "
        "lost. A new request is a new charge.",
    ),
    "page_too_old": (
        409,
        "The data or the policy changed after this page was made, so nothing was charged. Look at the cost below, and "
        "ask again.",
    ),
    "form_sent_before": (409, "This form was sent before, so nothing was done. Load the page again."),
    "ledger_unavailable": (503, "The ledger cannot be used now, so nothing was released."),
    "ledger_outdated": (
        503,
        "The ledger is older than what was charged to it, so nothing new is released until the newer one is back.",
    ),
    "embedder_failed": (503, "The embedder of this collection failed, so nothing was released."),
    "provider_unavailable": (503, "The provider of identities does not answer as it should; try again later."),
    "too_busy": (503, "The service handles as many requests as the policy allows at a time."),
    "not_ready": (503, "The service is not ready."),
    "internal_error": (500, "The service failed; nothing more is said about it here."),
}
#: What ``not_offered`` says more exactly, by what was asked for. Clients show the sentence to people who know Qdrant or
#: OpenAI, and not this service.
NOT_OFFERED: dict[str, str] = {
    "change": "Nothing can be added, changed or deleted here: the operator of the service changes records.",
    "collection": "No collection can be made, changed or deleted here: the policy of the service names them.",
    "count": "Records are not counted by a filter; the description of the collection has their number.",
    "filter": "A filter compares public fields with values; filters by id, by words or by place are not offered.",
    "query": "A query is one dense vector; queries by id, by examples, by sparse vectors or by text are not offered.",
    "stages": "A search has one stage; prefetch, lookup_from and shard_key are not offered.",
    "vector name": "The vector of this collection has no name; leave the name out.",
    "vectors": "Vectors of records are not shown. Diversity (MMR) needs them; use a search by similarity.",
}
#: What ``invalid_request`` says more exactly. The brackets take the name of a member of a model, and no other text.
NO_JSON = "The body must be JSON, with the header Content-Type: application/json."
UNKNOWN_MEMBER = "The body has a member that this path does not take; /openapi.json describes it."
NO_VECTOR = "The member query must be a list of numbers; a text is searched at /v1/vector_stores/NAME/search."
MISSING_MEMBER = "The body has no member {}."
WRONG_MEMBER = "The member or parameter {} has a wrong form or value; /openapi.json describes it."
#: Codes after which the same request will fail again. Clients that retry by themselves read the header.
_FINAL = ("budget_exhausted", "allowance_exhausted", "answer_lost")


class ServiceProblem(ScoreShieldError):
    """A request that the service rejects.

    Attributes:
        code: The stable code.
        status: The HTTP status.
        detail: One sentence.
        headers: Further headers of the response.
    """

    def __init__(self, code: str, detail: str | None = None, headers: dict[str, str] | None = None) -> None:
        self.code = code
        self.status, sentence = CODES[code]
        self.detail = sentence if detail is None else detail
        self.headers = dict(headers or {})
        if code in _FINAL:
            self.headers["x-should-retry"] = "false"
        if self.status == 401:
            self.headers["www-authenticate"] = "Bearer"
        super().__init__(self.detail)

    @classmethod
    def of_reason(cls, reason: str) -> ServiceProblem:
        """Make the problem ``not_offered`` with the sentence of a reason in `NOT_OFFERED`."""
        return cls("not_offered", NOT_OFFERED[reason])

    def to_dict(self) -> dict[str, Any]:
        """Return the members of the problem document (RFC 9457)."""
        return {
            "type": f"urn:scoreshield:problem:{self.code}",
            "title": self.code.replace("_", " "),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }


def describe_faults(errors: Sequence[Mapping[str, Any]], body: object) -> ServiceProblem:
    """Make the problem of a request that a model rejects. It names a member of the model at most, and no value.

    Args:
        errors: What pydantic found, with the place and the type of each fault.
        body: The body as it was read: bytes where its type is not JSON.
    """
    first = errors[0]
    place, kind = first["loc"], first["type"]
    if kind == "json_invalid":
        return ServiceProblem("invalid_json")
    if isinstance(body, bytes) and body:
        return ServiceProblem("invalid_request", NO_JSON)
    if kind == "extra_forbidden":
        return ServiceProblem("invalid_request", UNKNOWN_MEMBER)  # its name was chosen by the caller
    if kind == "list_type" and place == ("body", "query"):
        return ServiceProblem("invalid_request", NO_VECTOR)
    if len(place) < 2 or not isinstance(place[1], str):
        return ServiceProblem("invalid_request")
    sentence = MISSING_MEMBER if kind == "missing" and len(place) == 2 and place[0] == "body" else WRONG_MEMBER
    return ServiceProblem("invalid_request", sentence.format(place[1]))
