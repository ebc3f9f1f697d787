"""People who sign in, their sessions, attempts to sign in, and events."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "scoreshield_service_people",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("collections", sa.Text),
        sa.Column("password", sa.Text),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("disabled", sa.Text),
        sa.Column("source", sa.Text, nullable=False),
    )
    op.create_table(
        "scoreshield_service_sessions",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("person", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("seen", sa.Text, nullable=False),
        sa.Column("expires", sa.Text, nullable=False),
    )
    op.create_index("scoreshield_service_sessions_by_person", "scoreshield_service_sessions", ["person"])
    op.create_table(
        "scoreshield_service_attempts",
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("begin_time", sa.Text, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "scoreshield_service_events",
        # Only a plain integer numbers itself on SQLite.
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
    )
