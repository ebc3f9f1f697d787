"""Alembic runs the migrations of the tables of an installation through this file."""

from scoreshield.service.tables import run_migrations

run_migrations("installation_version")
