"""Alembic runs the migrations of the tables of a collection through this file."""

from scoreshield.service.tables import run_migrations

run_migrations("collection_version")
