"""Audit any release, of ScoreShield or of another library: compute a lower bound on its true epsilon."""

from scoreshield.audit import bounds
from scoreshield.audit.claims import Claim
from scoreshield.audit.engine import audit, audit_outputs
from scoreshield.audit.neighbours import Pair, drift_pair, from_canaries, list_pairs, worst_pairs
from scoreshield.audit.one_run import audit_one_run
from scoreshield.audit.result import AuditCheck, AuditResult

__all__ = [
    "AuditCheck",
    "AuditResult",
    "Claim",
    "Pair",
    "audit",
    "audit_one_run",
    "audit_outputs",
    "bounds",
    "drift_pair",
    "from_canaries",
    "list_pairs",
    "worst_pairs",
]


def __dir__() -> list[str]:
    return list(__all__)
