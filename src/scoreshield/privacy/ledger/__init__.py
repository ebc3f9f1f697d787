"""The ledger: what has been spent of a budget, durably, for each collection."""

from scoreshield.privacy.ledger.accounts import Account, Ledger, LedgerVerification, PendingCharge

__all__ = ["Account", "Ledger", "LedgerVerification", "PendingCharge"]
