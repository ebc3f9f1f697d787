"""The ledger: what has been spent of a budget, durably, for each collection."""

from scoreshield.privacy.ledger.accounts import Account, Ledger, PendingCharge, Verification

__all__ = ["Account", "Ledger", "PendingCharge", "Verification"]
