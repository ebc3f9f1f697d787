"""Plans: from scores and a stated need to noise, a threshold and the rates they give.

`verification` plans a matcher and `retrieval` plans a search. Both answer in a few sentences and compare other choices.
`choose` ranks the mechanisms for a need under one contract.
"""

from scoreshield.plan.alternatives import Alternative, Rule
from scoreshield.plan.base import RANGES, SOURCES, Plan
from scoreshield.plan.candidates import Candidate
from scoreshield.plan.choice import Choice, choose
from scoreshield.plan.collection import scores_of_collection
from scoreshield.plan.contracts import Contract, make_contract
from scoreshield.plan.retrieval_plan import RetrievalPlan, retrieval
from scoreshield.plan.verification_plan import VerificationPlan, verification

__all__ = [
    "RANGES",
    "SOURCES",
    "Alternative",
    "Candidate",
    "Choice",
    "Contract",
    "Plan",
    "RetrievalPlan",
    "Rule",
    "VerificationPlan",
    "choose",
    "make_contract",
    "retrieval",
    "scores_of_collection",
    "verification",
]


def __dir__() -> list[str]:
    return list(__all__)
