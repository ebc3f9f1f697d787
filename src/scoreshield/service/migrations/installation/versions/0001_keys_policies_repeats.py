"""API keys, policies and idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "scoreshield_service_facts",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "scoreshield_service_keys",
        sa.Column("prefix", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("caller", sa.Text, nullable=False),
        sa.Column("collections", sa.Text),
        sa.Column("actions", sa.Text),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("expires", sa.Text),
        sa.Column("revoked", sa.Text),
        sa.Column("successor", sa.Text),
    )
    op.create_table(
        "scoreshield_service_policies",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
    )
    op.create_table(
        "scoreshield_service_repeats",
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("time", sa.Text, nullable=False),
    )
