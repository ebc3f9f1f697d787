"""The rate of requests of each key, which all replicas count together."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "scoreshield_service_rates",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("free_at", sa.Double, nullable=False),
    )
