"""One rate of requests per key for all replicas, in the database that they share.

Each key has one number: the time at which its allowed requests are all free again. A request adds the time of one
request to it, in one statement, and is rejected where the number would be too far ahead. Lost rows of this table cost
nothing but a fresh start of the count, so its commits do not wait for the disk where the server allows it.
"""

from __future__ import annotations

import math
import time

from scoreshield.service.policy import RatePolicy
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.tables import InstallationDatabase, StatementRunner

_TABLE = "scoreshield_service_rates"
_LATER = f"CASE WHEN {_TABLE}.free_at > {{now}} THEN {_TABLE}.free_at ELSE {{now}} END + :cost"
#: The clocks of hosts differ, so the time is that of the server. SQLite has one host.
_SERVER_CLOCK = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)"


class SharedRateLimiter:
    """The rate of requests of each key, on all replicas together."""

    def __init__(self, database: InstallationDatabase) -> None:
        self._database = database
        self._now = _SERVER_CLOCK if database.is_server else ":now"
        database.prepare("rates")

    def count(self, name: str, rate: RatePolicy) -> None:
        """Count one request.

        Raises:
            ServiceProblem: The key is too fast. The header Retry-After says how long to wait.
        """
        cost = rate.seconds / rate.requests
        values = {"name": name, "cost": cost, "ahead": rate.seconds * (1 + 1e-9)}
        if not self._database.is_server:
            values["now"] = time.time()
        later = _LATER.format(now=self._now)
        counted = (
            f"INSERT INTO {_TABLE} (name, free_at) VALUES (:name, {self._now} + :cost) ON CONFLICT (name) "
            f"DO UPDATE SET free_at = {later} WHERE {later} - {self._now} <= :ahead RETURNING free_at"
        )
        waiting = f"SELECT {later} - {self._now} - :ahead FROM {_TABLE} WHERE name = :name"

        def work(execute: StatementRunner) -> float:
            if self._database.is_server:
                execute("SET LOCAL synchronous_commit = off")
            if execute(counted, **values).fetchone() is not None:
                return 0.0
            row = execute(waiting, **values).one()
            return max(float(row[0]), 0.001)

        seconds = self._database.write(work)
        if seconds:
            raise ServiceProblem("rate_limited", headers={"retry-after": str(max(1, math.ceil(seconds)))})
