"""The grid, and the attack on low-order bits that succeeds on float noise and must fail on ours."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scoreshield as ss
from scoreshield.privacy.noise import FINEST_STEP, GaussianNoise, add_noise, choose_grid_step
from scoreshield.privacy.sampling.stream import ResearchStream, SecureStream


@given(st.floats(1e-12, 1e8))
def test_grid_power_two_well_below_noise(std: float) -> None:
    """Grid is a power of two well below the noise."""
    step = choose_grid_step(std)
    assert math.frexp(step)[0] == 0.5
    assert step >= std / 2**46
    assert step <= max(std / 2**26, FINEST_STEP)
    assert 1 / step < 2**53  # so that every released value is exact in double precision


def test_noise_too_large_for_any_use_is_refused() -> None:
    with pytest.raises(ss.InvalidInput, match="hides every cosine"):
        choose_grid_step(2.0**28)


@given(st.floats(1e-6, 1e5), st.integers(0, 2**32))
def test_every_result_exact_multiple_step(std: float, seed: int) -> None:
    """Every result is an exact multiple of the step."""
    values = np.linspace(-1, 1, 101)
    step = choose_grid_step(std)
    add_noise(values, GaussianNoise(std), step, ResearchStream(np.random.default_rng(seed)))
    assert np.array_equal(np.fmod(values, step), np.zeros(101))


def test_noise_does_not_look_at_the_values() -> None:
    """Same stream, other data: the same noise to the last bit, and the same words consumed."""
    step = choose_grid_step(1.5)
    drawn, after = [], []
    for values in (np.zeros(5001), np.linspace(-1, 1, 5001), np.full(5001, 1 / 3)):
        clean = np.rint(values / step) * step
        generator = np.random.default_rng(5)
        add_noise(values, GaussianNoise(1.5), step, ResearchStream(generator))
        drawn.append(values - clean)
        after.append(generator.integers(1 << 62))
    assert np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[0], drawn[2])
    assert len(set(after)) == 1


def test_the_sign_of_zero_tells_nothing() -> None:
    """On a coarse grid many results are zero; a clean score just below zero must not give them another sign."""
    for clean in (-1e-20, -0.0, 0.0, 1e-20, 3.0):
        values = np.full(20_000, clean)
        add_noise(values, GaussianNoise(2.0), 1.0, SecureStream())
        zeros = values[values == 0]
        assert len(zeros) > 500
        assert not np.signbit(zeros).any()
    # The near miss: the sum as floats give it does betray which.
    betrayed = np.rint(np.full(1000, -1e-20)) + np.rint(np.linspace(-0.4, 0.4, 1000))
    assert np.signbit(betrayed).any()
    assert not np.signbit(np.rint(np.full(1000, 1e-20)) + np.rint(np.linspace(-0.4, 0.4, 1000))).any()


def low_bit_success(release: np.ndarray) -> float:
    """The share of draws that are not multiples of 2^-53: with score 1 there are none, so each betrays score 0."""
    scaled = release * 2.0**53
    return float(np.mean(scaled != np.rint(scaled)))


@pytest.mark.parametrize(("epsilon", "share"), [(1, 0.034), (10, 0.24), (100, 0.79)])
def test_low_bits_betray_float_noise_and_not_ours(epsilon: float, share: float) -> None:
    size, sigma = 200_000, ss.calibrate(epsilon, 1e-6, 2.0)
    floats = np.random.default_rng(11)
    assert low_bit_success(1.0 + floats.normal(0, sigma, size)) == 0
    assert low_bit_success(0.0 + floats.normal(0, sigma, size)) > share / 2  # the attack works on float noise ...
    step = choose_grid_step(sigma)
    for score in (0.0, 1.0):
        ours = np.full(size, score)
        add_noise(ours, GaussianNoise(sigma), step, SecureStream())
        assert low_bit_success(ours) == 0  # ... and sees nothing in ours


def test_gaussian_law() -> None:
    law = GaussianNoise(2.0)
    assert law.cdf(0.0) == 0.5
    assert law.cdf(2.0) == pytest.approx(0.8413447460685429)
    assert law.sf(80.0) == pytest.approx(0.0, abs=1e-300)
    assert law.sf(60.0) == pytest.approx(4.906713927148187e-198, rel=1e-12, abs=0)
    assert law.quantile(law.cdf([-1.0, 0.5])) == pytest.approx([-1.0, 0.5])
    with pytest.raises(ss.InvalidInput):
        GaussianNoise(0.0)


class OneStep:
    """A law whose every draw is one step."""

    def fill(self, stream: object, step: float, out: np.ndarray) -> None:
        del stream, step
        out[:] = 1.0


def test_clean_values_rounded_before_noise() -> None:
    """Where a clean value lies half-way between two steps, which of them it is must not depend on the noise."""
    step = 2.0**-20
    halves = np.arange(-5, 6) + 0.5
    values = halves * step
    add_noise(values, OneStep(), step, ResearchStream(np.random.default_rng(1)))
    assert np.array_equal(values / step, np.rint(halves) + 1)
