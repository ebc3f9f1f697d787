"""What a policy means, in words: who may do what, what a query costs, and how many fit. Nothing is charged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scoreshield.errors import InvalidInput, ScoreShieldError, StoreError
from scoreshield.service.answers import AnswerBook, AnswerState
from scoreshield.service.attackers import bound_rates, describe_rates
from scoreshield.service.collection import CollectionData, load_collection
from scoreshield.service.embedding import make_text_embedder
from scoreshield.service.installation import open_installation_key
from scoreshield.service.offers import QueryOffer, count_in_budget, find_cost_faults, make_offers
from scoreshield.service.policy import (
    CallerPolicy,
    CollectionPolicy,
    Policy,
    find_contradictions,
    find_size_fault,
    find_source_faults,
)
from scoreshield.service.tables import check_limit, find_collection_ledger


def find_policy_faults(policy: Policy) -> list[str]:
    """Find every contradiction of a policy, with those that need the files; one sentence for each."""
    faults = list(find_contradictions(policy))
    for name, collection in policy.collections.items():
        if not list(find_source_faults(name, collection)):
            try:
                data = load_collection(name, collection)
                if collection.embedder is not None:
                    make_text_embedder(name, collection.embedder, data.dimension)
                fault = find_size_fault(name, data.dimension, policy.installation)
                faults += [] if fault is None else [fault]
                faults += find_cost_faults(name, collection, make_offers(name, collection, data))
                faults += _find_limit_faults(policy, name, collection)
            except (InvalidInput, StoreError) as error:
                faults.append(f"Collection {name} cannot be served: {error}")
    return faults


def describe_policy(policy: Policy) -> Iterator[str]:
    """Describe a consistent policy, line by line."""
    for name, collection in policy.collections.items():
        offers = _make_offers(name, collection)
        budget = collection.budget
        limit = f"epsilon {budget.epsilon:g} at delta {budget.delta:g}"
        yield f"Collection {name}: budget {limit}, for all callers together."
        fit = {action: f"{count_in_budget(collection, offers, action):,} queries fit" for action in offers}
        yield from describe_offers(collection, offers, fit)
        shown = ", ".join(collection.fields) or "none"
        yield f"  public fields: {shown}"
    for name, caller in policy.callers.items():
        yield from _describe_caller(name, caller)


def describe_offers(
    collection: CollectionPolicy, offers: dict[str, QueryOffer], counts: Mapping[str, str]
) -> Iterator[str]:
    """Describe what a collection answers, what that costs, and what an attacker finds out by it.

    Args:
        collection: Its policy.
        offers: What it answers.
        counts: How many queries of each offer the budget covers, in words.
    """
    for action in collection.list_actions():
        yield f"  {_describe_action(action, offers, counts)}"
        if action in offers:
            shown = "The index" if action == "index" else f"One {action} answer"
            yield f"    {shown}: {describe_rates(offers[action].guarantee).sentence}"
    yield f"  The whole budget: {bound_rates(collection.budget.epsilon, collection.budget.delta).sentence}"


def _find_limit_faults(policy: Policy, name: str, collection: CollectionPolicy) -> list[str]:
    """Find a budget that differs from that of the ledger, which the next start would reject.

    A policy may be checked where the database of the installation cannot be reached.
    """
    if collection.dummy:
        return []
    try:
        ledger = find_collection_ledger(policy.installation.database, name)
    except ScoreShieldError:
        return []
    try:
        if ledger is not None:
            check_limit(ledger, name, epsilon=collection.budget.epsilon, delta=collection.budget.delta)
    except InvalidInput as error:
        return [str(error)]
    return []


def describe_index_charges(policy: Policy) -> Iterator[str]:
    """Say for each index whether the next start charges it, and how much. Nothing is made and nothing is charged."""
    for name, collection in policy.collections.items():
        if collection.index is None or collection.dummy:
            continue
        data = load_collection(name, collection)
        offer = make_offers(name, collection, data)["index"]
        charge = f"charges {_describe_cost(offer)} for the index of {name}"
        try:
            state = _find_index_state(policy, name, data, offer)
        except ScoreShieldError:
            yield f"The next start {charge}, unless it is stored: the ledger or the installation key cannot be read."
            continue
        if state is None:
            yield f"The next start {charge}."
        elif state == "stored":
            yield f"The next start charges nothing for the index of {name}: it is stored for these vectors."
        else:
            yield f"The next start charges nothing for the index of {name}: it is charged, and will be computed."


def _find_index_state(policy: Policy, name: str, data: CollectionData, offer: QueryOffer) -> AnswerState | None:
    here = policy.installation
    ledger = find_collection_ledger(here.database, name)
    if ledger is None:
        return None
    key = open_installation_key(here.key_file, is_made=False)
    book = AnswerBook(ledger, name, 1, data.hash_values(key), key, older=data.compute_snapshot(key))
    return book.find_state(book.make_request(offer, None))


def _describe_cost(offer: QueryOffer) -> str:
    guarantee = offer.guarantee
    return f"epsilon {guarantee.epsilon:g}" + (f", delta {guarantee.delta:g}" if guarantee.delta else "")


def _describe_action(action: str, offers: dict[str, QueryOffer], counts: Mapping[str, str]) -> str:
    if action not in offers:
        return f"{action}: by the index, at no further cost"
    offer = offers[action]
    guarantee = offer.guarantee
    cost = _describe_cost(offer)
    if action == "index":
        return f"index: {guarantee.mechanism}, {cost}, charged at the start, once for each state of the vectors"
    return f"{action}: {guarantee.mechanism}, {cost} per query; {counts[action]}"


def _describe_caller(name: str, caller: CallerPolicy) -> Iterator[str]:
    end = "" if caller.expires is None else f", until {caller.expires.isoformat(timespec='seconds')}"
    yield f"Caller {name} ({caller.role}{end}, {caller.rate.requests} requests per {caller.rate.seconds:g} s):"
    for collection, grant in caller.collections.items():
        allowance = grant.allowance
        limits = [] if allowance is None or allowance.epsilon is None else [f"epsilon {allowance.epsilon:g}"]
        limits += [] if allowance is None or allowance.queries is None else [f"{allowance.queries:,} queries"]
        within = f", within {' and '.join(limits)}" if limits else ""
        yield f"  {collection}: {', '.join(grant.actions)}{within}"
    if not caller.collections:
        yield "  no collection"


def _make_offers(name: str, collection: CollectionPolicy) -> dict[str, QueryOffer]:
    return make_offers(name, collection, load_collection(name, collection))
