"""A keyed hash of each stored answer."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column. `AnswerBook.prove_older` fills it for answers that were stored before."""
    op.add_column("scoreshield_service_answers", sa.Column("proof", sa.Text))
