"""Releases that an auditor is tried on: published faults, honest mechanisms, and mechanisms of other libraries.

`benchmarks/audit_battery_table.py` audits them all. `attacks` holds what someone who knows each fault would do.
"""
