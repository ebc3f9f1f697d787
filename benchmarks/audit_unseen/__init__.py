"""Releases that were written without knowledge of the auditor's code: 45 faults and 25 honest mechanisms.

Their author had read `docs/audit.md` alone. `benchmarks/audit_unseen_table.py` audits them with the default command.
"""
