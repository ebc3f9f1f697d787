"""Alembic runs the migrations of the table of shared rates through this file."""

from scoreshield.service.tables import run_migrations

run_migrations("rates_version")
