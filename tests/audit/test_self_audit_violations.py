"""The audit of our own releases finds violations. A file of its own: it takes minutes, and files share the cores."""

from __future__ import annotations

from typing import Any

from scoreshield.audit.claims import Claim
from scoreshield.audit.engine import audit
from scoreshield.audit.self_audit import list_shipped_releases
from scoreshield.privacy.profiles import GaussianProfile


def test_violations_are_found() -> None:
    """Every one of them, claimed to be far less than it is.

    What a projection leaves of the noise tells less, the slowest is drawn less often, and the noise of a center hides
    a record among four: those at a larger epsilon.
    """
    often = {"bulk": 10_000, "single": 1_000, "pure": 1_000, "slow": 1_000, "slowest": 80}
    hard = [
        one.name
        for one in list_shipped_releases((16.0,))
        if one.pace == "slowest" or "projected alone" in one.name or "gaussian, private center" in one.name
    ]
    assert len(hard) == 3
    unnoticed = []
    for one in [
        *(one for one in list_shipped_releases((4.0,)) if one.name.replace("epsilon 4", "epsilon 16") not in hard),
        *(one for one in list_shipped_releases((16.0,)) if one.name in hard),
    ]:
        profile = one.claim.profile
        less = GaussianProfile(profile.mu / 4) if isinstance(profile, GaussianProfile) else None
        claim = Claim(0.5 if less is None else less.epsilon_at(one.claim.delta), one.claim.delta, profile=less)
        options: dict[str, Any] = {"neighbours": one.pair, "releases": often[one.pace], "confidence": 0.999}
        if not audit(one.release, claim, seed=1, **options).broken:
            unnoticed.append(one.name)
    assert unnoticed == []
