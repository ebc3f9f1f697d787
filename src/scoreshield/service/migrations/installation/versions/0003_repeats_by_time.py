"""Old idempotency keys are found by their time."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the index."""
    op.create_index("scoreshield_service_repeats_by_time", "scoreshield_service_repeats", ["time"])
