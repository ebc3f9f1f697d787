"""Answers, allowances and versions of the data of one collection."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "scoreshield_service_answers",
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("base", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("seed", sa.Text),
        sa.Column("promise", sa.Text, nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("caller", sa.Text, nullable=False),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("content", sa.LargeBinary),
        sa.Column("signer", sa.Text),
    )
    op.create_index("scoreshield_service_answers_by_base", "scoreshield_service_answers", ["base"])
    op.create_table(
        "scoreshield_service_allowances",
        sa.Column("caller", sa.Text, primary_key=True),
        sa.Column("queries", sa.BigInteger, nullable=False),
        sa.Column("epsilon", sa.Text, nullable=False),
    )
    op.create_table(
        "scoreshield_service_versions",
        sa.Column("version", sa.BigInteger, primary_key=True),
        sa.Column("snapshot", sa.Text, nullable=False, unique=True),
        sa.Column("time", sa.Text, nullable=False),
    )
