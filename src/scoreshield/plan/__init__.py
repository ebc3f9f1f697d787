"""What to set and what it costs: from the scores one has and a need one states to noise, a threshold and a verdict.

`verification` plans a matcher, `retrieval` a search; both answer in a sentence and know what each choice changes.
`choose` ranks the mechanisms for a need under one contract.
"""

from scoreshield.plan.alternatives import Outcome, Rule
from scoreshield.plan.base import RANGES, SOURCES, Plan
from scoreshield.plan.choice import Candidate, Choice, choose
from scoreshield.plan.collection import scores_of_collection
from scoreshield.plan.contracts import Contract, contract
from scoreshield.plan.retrieval_plan import RetrievalPlan, retrieval
from scoreshield.plan.verification_plan import VerificationPlan, verification

__all__ = [
    "RANGES",
    "SOURCES",
    "Candidate",
    "Choice",
    "Contract",
    "Outcome",
    "Plan",
    "RetrievalPlan",
    "Rule",
    "VerificationPlan",
    "choose",
    "contract",
    "retrieval",
    "scores_of_collection",
    "verification",
]
