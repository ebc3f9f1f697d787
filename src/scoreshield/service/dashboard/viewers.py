"""What a person may see and do on the dashboard. What a person may not see is as if it were not there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from scoreshield.service.answers import Payer
from scoreshield.service.core import ServedCollection, Service
from scoreshield.service.people import Person
from scoreshield.service.policy import ROLE_ACTIONS, CallerPolicy, GrantPolicy, Role
from scoreshield.service.problems import ServiceProblem

#: Who reads reports, and who reads events.
REPORT_READERS: tuple[Role, ...] = ("curator", "officer", "admin")
EVENT_READERS: tuple[Role, ...] = ("officer", "admin")
#: The actions that a page asks for.
QUESTIONS = ("search", "matches", "top_k")


@dataclass(frozen=True)
class Asker:
    """The caller as which a person asks a collection: its name, and what the policy says about it."""

    name: str
    caller: CallerPolicy
    grant: GrantPolicy

    @property
    def payer(self) -> Payer:
        """Who is charged."""
        return Payer(self.name, self.grant.allowance)

    def allows(self, action: str) -> bool:
        """Return whether the policy grants the caller this action."""
        return action in self.grant.actions and action in ROLE_ACTIONS[self.caller.role]


def check_role(person: Person, *roles: Role) -> None:
    """Raise the error of a missing page for a person of any other role."""
    if person.role not in roles:
        raise ServiceProblem("not_found")


def has_entries(person: Person) -> bool:
    """Return whether the role of a person reads the ledger: who was charged, when and how much."""
    return "entries" in ROLE_ACTIONS[person.role]


def open_seen(service: Service, person: Person, name: str) -> ServedCollection:
    """Open a collection that a person may see.

    Raises:
        ServiceProblem: There is none of this name, or the person may not see it.
    """
    if name not in person.collections or name not in service.collections:
        raise ServiceProblem("not_found")
    return service.collections[name]


def list_seen(service: Service, person: Person) -> list[ServedCollection]:
    """List the collections that a person may see."""
    return [served for name, served in service.collections.items() if name in person.collections]


def find_asker(service: Service, person: Person, served: ServedCollection, action: str = "search") -> Asker | None:
    """Find the caller as which a person may ask a collection: the one whose ``people`` in the policy name the person.

    Args:
        service: What is served.
        person: Who asks. The role must allow the action too.
        served: The collection, which the person may see.
        action: What for.
    """
    for name, caller in service.policy.callers.items():
        grant = caller.collections.get(served.name)
        if person.name not in caller.people or grant is None:
            continue
        is_over = caller.expires is not None and caller.expires <= datetime.now(UTC)
        asker = Asker(name, caller, grant)
        if not is_over and action in ROLE_ACTIONS[person.role] and asker.allows(action):
            return asker
    return None


def list_askers(service: Service, person: Person, served: ServedCollection) -> dict[str, Asker]:
    """List the questions that a person may ask a collection on a page, each with the caller that is charged."""
    offered = [action for action in QUESTIONS if action in served.policy.list_actions()]
    found = {action: find_asker(service, person, served, action) for action in offered}
    return {action: asker for action, asker in found.items() if asker is not None}


def list_managed_callers(service: Service, person: Person) -> dict[str, dict[str, GrantPolicy]]:
    """List the callers for whom an admin makes keys, each with its grants on collections that the admin sees."""
    found = {}
    for name, caller in service.policy.callers.items():
        grants = {one: grant for one, grant in caller.collections.items() if one in person.collections}
        if grants or person.has_all_collections:
            found[name] = grants
    return found
