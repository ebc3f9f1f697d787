"""The steps that all releases share: the checked request, the checked collection, the calibrated noise, the charge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._formatting import choose_words
from scoreshield._types import AccountLike, Calibration, Reservation, Rng
from scoreshield._validation import Check, check_delta, check_epsilon, check_flag, one_of
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import ADJACENCIES, Adjacency, Identity, ReleaseShape, Sensitivity, check_score_range
from scoreshield.privacy.guarantee import Guarantee, ReleaseFacts
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise, choose_grid_step
from scoreshield.privacy.noise.laws import CalibratedNoise
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.privacy.provenance import Provenance
from scoreshield.privacy.sampling.stream import ReleaseKey, Stream, check_process, identify_process, open_stream
from scoreshield.releases.results import Release

Clean = TypeVar("Clean")
R = TypeVar("R")
T = TypeVar("T")

#: Noise that is added to scores.
AdditiveMechanism = Literal["gaussian", "laplace", "staircase"]
ADDITIVE: tuple[str, ...] = get_args(AdditiveMechanism)
#: The noise that needs no delta, and its laws.
PURE: dict[str, type[LaplaceNoise] | type[StaircaseNoise]] = {law.name: law for law in (LaplaceNoise, StaircaseNoise)}
#: The constraints on the privacy arguments of scores, a row and a Gram matrix.
PRIVACY_CHECKS: dict[str, Check] = {
    "epsilon": check_epsilon,
    "delta": check_delta,
    "mechanism": one_of(ADDITIVE),
    "calibration": one_of(gaussian.METHODS),
    "score_range": check_score_range,
    "unsafe_reproduce_paper": check_flag,
}


@dataclass(frozen=True)
class PrivacyRequest:
    """The privacy arguments of a release by additive noise, each checked by `PRIVACY_CHECKS`, which fit together."""

    epsilon: float
    delta: float
    mechanism: AdditiveMechanism
    calibration: Calibration
    score_range: tuple[float, float]
    unsafe: bool = False

    def __post_init__(self) -> None:
        if self.mechanism == "gaussian" and self.delta == 0:
            _validation.reject("delta", "above 0 for Gaussian noise (1e-6, say)", self.delta)
        if self.mechanism in PURE and self.delta != 0:
            must = f"0 (left out) for {self.mechanism}, which is private without it"
            _validation.reject("delta", must, self.delta)
        if self.mechanism in PURE and (self.calibration != "analytic" or self.unsafe):
            raise InvalidInput(f"Calibration rules are for Gaussian noise: leave them out for {self.mechanism}.")

    def require_gaussian(self, what: str) -> None:
        """Raise an error for noise that is private for one moved entry only, where one record moves many."""
        if self.mechanism in PURE:
            index = choose_words("release_index", "`scoreshield release index`")
            raise InvalidInput(
                f"One record moves many entries of {what}, and {self.mechanism} noise is private where it moves one: "
                f"use mechanism='gaussian', or {index}, whose Gram matrix is pure."
            )

    @property
    def width(self) -> float:
        return self.score_range[1] - self.score_range[0]

    def calibrate(self, sensitivity: Sensitivity, *, entries_per_draw: int = 1) -> CalibratedNoise:
        """Calibrate the noise to this sensitivity; rounding to the grid moves each entry by one step more."""
        if self.mechanism in PURE:
            return self._calibrate_pure(sensitivity)
        share = math.sqrt(1 / entries_per_draw) * (1 + 2**-50)
        step = choose_grid_step(self._scale(sensitivity.l2) * share)
        on_grid = sensitivity.l2 + step * math.sqrt(sensitivity.moved)
        scale = self._scale(on_grid)
        return CalibratedNoise(
            sensitivity.l2, on_grid, scale, GaussianNoise(scale * share), step, GaussianProfile(on_grid / scale)
        )

    def _calibrate_pure(self, sensitivity: Sensitivity) -> CalibratedNoise:
        """Calibrate Laplace or staircase noise, for one moved entry whose values are whole numbers of steps apart."""
        if sensitivity.moved > 1:
            raise InvalidInput(
                f"{self.mechanism.capitalize()} noise is private only if one record moves one score; here "
                f"{sensitivity.moved:,} "
                "entries move, and noise of this scale would not cover them: use mechanism='gaussian', centroids for "
                "identities, or one query at a time."
            )
        low, high = self.score_range
        make = PURE[self.mechanism]
        step = choose_grid_step(make.calibrate(self.epsilon, self.width).std)
        width = count_steps(low, high, step) * step
        law = make.calibrate(self.epsilon, width, step)
        return CalibratedNoise(sensitivity.l2, width, law.scale, law, step, law.profile(width))

    def _scale(self, sensitivity: float) -> float:
        if self.unsafe and self.calibration != "analytic":
            return sensitivity / gaussian.compute_rule_mu(self.epsilon, self.delta, self.calibration)
        return gaussian.calibrate(self.epsilon, self.delta, sensitivity, self.calibration)

    def state_guarantee(self, noise: CalibratedNoise, facts: ReleaseFacts) -> Guarantee:
        """State what this noise promises. A textbook rule that does not reach its claim states the true pair."""
        guarantee = Guarantee.for_additive_noise(
            facts, noise, epsilon=self.epsilon, delta=self.delta, calibration=self.calibration
        )
        if not self.unsafe or guarantee.delta_at(self.epsilon) <= self.delta:
            return guarantee
        return replace(guarantee, epsilon=guarantee.epsilon_at(self.delta), claimed=(self.epsilon, self.delta))


@dataclass(frozen=True)
class PrivateCollection:
    """The checked collection. Its public size is known at once; its rows are read only after calibration."""

    records: _embeddings.Rows
    adjacency: Adjacency
    size: int  # how many rows are released: the records, or one centroid per identity
    labels: NDArray[Any] | None  # of the identities, where centroids are released

    @classmethod
    def check(cls, source: ArrayLike, adjacency: Any, *, least: int = 1) -> PrivateCollection:
        if type(adjacency) not in ADJACENCIES:  # a subclass could state another sensitivity
            must = "an Adjacency such as Replacement() or Identity(labels)"
            _validation.reject("adjacency", must, adjacency)
        records = _embeddings.as_rows(source)
        size, labels = len(records), None
        if isinstance(adjacency, Identity):
            if adjacency.labels is None:
                raise InvalidInput("The given Identity was read from a guarantee and has no labels; make a new one.")
            if len(adjacency.labels) != size:
                raise InvalidInput(
                    f"The 'labels' parameter of Identity must be one per record, {size:,} of them. Got "
                    f"{len(adjacency.labels):,} instead."
                )
            if adjacency.centroids:
                size, labels = adjacency.identities, adjacency.labels
        if size < least:
            raise InvalidInput("Give at least two records: the similarity of one with itself is the public constant 1.")
        return cls(records, adjacency, size, labels)

    @property
    def dimension(self) -> int:
        return int(self.records.shape[1])

    @property
    def rounding(self) -> float:
        """A bound on the float error of one computed score; centroids are in double precision."""
        dtype = self.records.dtype if self.labels is None else np.float64
        return _embeddings.bound_rounding_error(self.dimension, dtype)

    def rows(self) -> _embeddings.Rows:
        if self.labels is None:
            return self.records
        return _embeddings.compute_centroids(self.records, self.labels)


def check_single_query(
    embeddings: ArrayLike, query: ArrayLike, adjacency: Adjacency
) -> tuple[PrivateCollection, NDArray[np.float64]]:
    """Check the collection and the query of a release that is private only if one record moves one score."""
    source = PrivateCollection.check(embeddings, adjacency)
    queries, single = _embeddings.as_queries(query, source.dimension)
    if not single and len(queries) != 1:
        raise InvalidInput("Give one query. Each further query is a release of its own.")
    moved = source.adjacency.bound_sensitivity(ReleaseShape("scores", source.size)).moved
    if moved > 1:
        raise InvalidInput(
            f"This release is private only if one record moves one score. An identity moves up to {moved:,} of them: "
            f"use {choose_words('Identity(labels, centroids=True)', '--centroids')}."
        )
    return source, queries


def count_steps(low: float, high: float, step: float) -> int:
    """Count the largest number of grid steps between two clamped and rounded scores, at least the width of the range.

    Rounding is monotone: rounded scores stay between the rounded ends.
    """
    steps = max(round(high / step) - round(low / step), math.ceil((high - low) / step))
    if round(high / step) == round(low / step):
        raise InvalidInput(
            f"The score range [{low:g}, {high:g}] is narrower than one step of the noise's grid ({step:g}): nothing of "
            "the "
            "scores would be left; ask for a larger epsilon or a wider range."
        )
    return steps


@dataclass(frozen=True, repr=False)
class PendingRelease(Generic[Clean, R]):
    """A release whose guarantee is known from public facts, before a row is read or anything is charged.

    Attributes:
        guarantee: The promise of the release, which a ledger is charged for.
        adjacency: The requested adjacency. Unlike that of the guarantee, it has the labels of identities.
        compute: Computes the clean values and checks every row.
        draw: Overwrites the clean values with noise from a stream and makes the release of them.
        process: The process that started the release. A fork of it cannot continue it, except in research mode.
    """

    guarantee: Guarantee
    adjacency: Adjacency
    rng: Rng
    compute: Callable[[], Clean]
    draw: Callable[[Clean, Stream], R]
    process: tuple[int, int] = field(default_factory=identify_process)

    def release(self, ledger: AccountLike | None, *, same_people: bool = False) -> R:
        """Reserve, compute, commit, draw: see `release_all`."""
        return release_all([self], ledger, lambda release: release, same_people=same_people)[0]

    def finish(self, clean: Clean) -> R:
        """Make the release of clean values. The caller must have committed the charge."""
        self.check_process()
        released = self.draw(clean, open_stream(self.rng))
        self.check_process()  # a fork after the last word was drawn
        return released

    def use_key(self, key: ReleaseKey) -> PendingRelease[Clean, R]:
        """Return the same release with the noise of a release key. Its guarantee is that of secure noise."""
        assert self.rng is None
        return replace(self, rng=key)

    def check_process(self) -> None:
        """Raise an error in a fork of the process that started the release."""
        if self.rng is None:
            check_process(self.process)


def release_all(
    releases: Sequence[PendingRelease[Clean, R]],
    ledger: AccountLike | None,
    use: Callable[[R], T],
    *,
    same_people: bool = False,
) -> list[T]:
    """Make several releases of the same records, charged together: reserve, compute, commit, draw.

    No random bit is drawn before the charge. A bad row costs nothing: all releases read the same rows, so the first
    one's clean values are computed before the charge, and every row is checked on the way.

    Args:
        releases: At least one release.
        ledger: The account that is charged for all of them, or None.
        use: Takes each release when it is drawn. Its results are returned, so that one release is held at a time.
        same_people: As for `scoreshield.privacy.ledger.Account.reserve`.

    Returns:
        What ``use`` returned for each release.
    """
    first = releases[0]
    guarantees = [one.guarantee for one in releases]
    pending = reserve(ledger, guarantees, first.adjacency, same_people=same_people)
    clean = first.compute()
    first.check_process()  # before the charge, so that a fork is not charged for an error
    entries = pending.commit()
    results = []
    for place, one in enumerate(releases):
        released = one.finish(clean if place == 0 else one.compute())
        if isinstance(released, Release) and len(entries) == len(releases):
            released = released.change_guarantee(state_provenance(released.guarantee, ledger, entries[place]))
        results.append(use(released))
    return results


def state_provenance(guarantee: Guarantee, ledger: AccountLike | None, entry: Any) -> Guarantee:
    """Put the ledger entry of a charge on the certificate, with the texts of the account. Others are left as they are.

    Args:
        guarantee: The promise that was charged.
        ledger: The account that was charged; None if none was.
        entry: What the account returned for this charge.
    """
    from scoreshield.privacy.ledger.entries import Entry  # an account has loaded it

    if ledger is None or not isinstance(entry, Entry):
        return guarantee
    return replace(guarantee, provenance=Provenance.of_entry(entry, getattr(ledger, "who", None)))


class _NoCharge:
    def commit(self) -> Sequence[Any]:
        return ()


def reserve(
    ledger: AccountLike | None, guarantees: Sequence[Guarantee], adjacency: Adjacency, *, same_people: bool = False
) -> Reservation:
    """Ask an account whether these guarantees fit; `commit()` of the result charges them, all or none."""
    if ledger is None:
        return _NoCharge()
    check_account(ledger)
    pending: Reservation = ledger.reserve(guarantees, adjacency=adjacency, same_people=same_people)
    return pending


def check_account(ledger: AccountLike) -> None:
    """Raise an error if this is no account: a collection is charged by its name.

    The error shows the type alone: the address of a ledger may hold a password.
    """
    if not callable(getattr(ledger, "reserve", None)) or not getattr(ledger, "dataset", None):
        _validation.reject("ledger", "ledger.account(name), with the name of the collection", type(ledger))


def draw_tie_break(stream: Stream) -> int:
    return int(stream.words(1)[0] >> 1) & (2**62 - 1)
