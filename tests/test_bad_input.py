"""Everything a person can get wrong, through Python: one sentence that says what would be right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scoreshield as ss

GOOD = np.eye(4, 3) + 0.5
QUERY = np.ones(3)
CONTRACT: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}

RELEASES = {
    "release_scores": lambda rows=GOOD, **k: ss.release_scores(rows, k.pop("query", QUERY), **{**CONTRACT, **k}),
    "release_row": lambda rows=GOOD, **k: ss.release_row(rows, k.pop("index", 0), **{**CONTRACT, **k}),
    "release_gram": lambda rows=GOOD, **k: ss.release_gram(rows, **{"max_iterations": 2, **CONTRACT, **k}),
}


def changed(place: tuple[int, int], value: float) -> np.ndarray:
    rows = GOOD.copy()
    rows[place] = value
    return rows


def complaint(call: Any) -> str:
    with pytest.raises(ss.InvalidInput) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith((".", ").")), text
    assert len(text) < 300
    assert isinstance(caught.value, ValueError)
    return text


@pytest.mark.parametrize("name", RELEASES)
class TestEveryRelease:
    @pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, "1", None, True, 1j, [1.0]])
    def test_epsilon(self, name: str, epsilon: Any) -> None:
        text = complaint(lambda: RELEASES[name](epsilon=epsilon))
        assert text.startswith(f"The 'epsilon' parameter of {name} must be a positive finite number. Got ")

    @pytest.mark.parametrize("delta", [-1e-9, 1, 1.5, math.nan, "0", None])
    def test_delta(self, name: str, delta: Any) -> None:
        assert f"The 'delta' parameter of {name} must be a number in [0, 1)" in complaint(
            lambda: RELEASES[name](delta=delta)
        )

    def test_no_delta_is_not_a_default(self, name: str) -> None:
        text = complaint(lambda: RELEASES[name](delta=0.0))
        assert "above 0 for Gaussian noise" in text
        assert ("for_='ranking' keeps more and needs none" in text) == (name == "release_scores")

    def test_no_epsilon_is_a_type_error(self, name: str) -> None:
        arguments = {"release_scores": (GOOD, QUERY), "release_row": (GOOD, 0), "release_gram": (GOOD,)}[name]
        with pytest.raises(TypeError, match="epsilon"):
            getattr(ss, name)(*arguments)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_not_finite(self, name: str, value: float) -> None:
        text = complaint(lambda: RELEASES[name](changed((2, 1), value)))
        assert text.startswith("Row 2 of 'embeddings' holds a NaN or an infinity")

    def test_zero_row(self, name: str) -> None:
        rows = GOOD.copy()
        rows[3] = 0
        axis = GOOD.copy()
        axis[3] = [1, 0, 0]  # what a zero row is taken as, so that no neighbour raises an error
        assert np.array_equal(RELEASES[name](rows, rng=1).noisy, RELEASES[name](axis, rng=1).noisy)

    @pytest.mark.parametrize(
        "rows",
        [
            np.ones(3),
            np.ones((2, 3, 4)),
            np.empty((0, 3)),
            np.empty((3, 0)),
            np.array([["a", "b"]]),
            np.array([[1j, 2]]),
            np.array([[None, 1.0]]),
            [[1.0, 2.0], [3.0]],
            "embeddings.npy",
            None,
            3.0,
            np.ones((2, 3), dtype=bool),
        ],
    )
    def test_not_a_matrix(self, name: str, rows: Any) -> None:
        text = complaint(lambda: RELEASES[name](rows))
        assert "'embeddings' parameter" in text
        assert "two-dimensional array of real numbers" in text

    @pytest.mark.parametrize("score_range", [(0, 0), (1, -1), (-1.5, 1), (0, 2), (0,), 0.5, ("a", "b"), (0, math.nan)])
    def test_score_range(self, name: str, score_range: Any) -> None:
        assert "-1 <= a < b <= 1" in complaint(lambda: RELEASES[name](score_range=score_range))

    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("mechanism", "uniform"),
            ("mechanism", 3),
            ("calibration", "exact"),
            ("adjacency", "replacement"),
            ("adjacency", ss.Replacement),
            ("rng", -1),
            ("rng", 1.5),
            ("rng", "secure"),
            ("rng", True),
            ("unsafe_reproduce_paper", "yes"),
        ],
    )
    def test_options(self, name: str, argument: str, value: Any) -> None:
        assert f"'{argument}' parameter of {name}" in complaint(lambda: RELEASES[name](**{argument: value}))

    def test_no_mechanism(self, name: str) -> None:
        """Only scores may leave their mechanism to their use; for their values it is Gaussian noise."""
        if name == "release_scores":
            assert RELEASES[name](mechanism=None).guarantee.mechanism == "gaussian"
        else:
            assert f"'mechanism' parameter of {name}" in complaint(lambda: RELEASES[name](mechanism=None))

    def test_labels_of_another_length(self, name: str) -> None:
        assert "one per record, 4 of them" in complaint(lambda: RELEASES[name](adjacency=ss.Identity([1, 2])))

    def test_labels_read_from_a_file(self, name: str, tmp_path: Any) -> None:
        RELEASES[name](adjacency=ss.Identity([1, 1, 2, 2])).save(tmp_path / "r.npz")
        adjacency = ss.load(tmp_path / "r.npz").guarantee.adjacency
        assert "has no labels" in complaint(lambda: RELEASES[name](adjacency=adjacency))

    def test_epsilon_without_any_signal(self, name: str) -> None:
        assert "hides every cosine" in complaint(lambda: RELEASES[name](epsilon=1e-9, delta=1e-12))
        assert "between 1e-9 and 1e9" in complaint(lambda: RELEASES[name](epsilon=1e-10, delta=1e-12))

    def test_masked_rows(self, name: str) -> None:
        assert "without a mask" in complaint(lambda: RELEASES[name](np.ma.masked_less(GOOD, 1)))

    def test_error_never_shows_the_data(self, name: str) -> None:
        secret = 0.123456789
        rows = np.full((4, 3), secret)
        rows[1, 1] = math.nan
        assert "0.1234" not in complaint(lambda: RELEASES[name](rows))
        assert "0.1234" not in complaint(lambda: RELEASES[name](rows[0]))
        assert "0.1234" not in complaint(lambda: RELEASES[name](rows.tolist()[0]))
        assert "0.1234" not in complaint(lambda: RELEASES[name]([[secret, secret], [secret]]))


@pytest.mark.parametrize(
    "query", [np.ones(4), np.ones((2, 4)), np.ones((2, 3, 1)), 1.0, "q", None, [[1.0], [1.0, 2.0]]]
)
def test_query_of_another_shape(query: Any) -> None:
    assert "'query' parameter of release_scores" in complaint(lambda: RELEASES["release_scores"](query=query))


@pytest.mark.parametrize("query", [np.zeros(3), np.array([1, math.nan, 0]), np.array([[1.0, 0, 0], [0, 0, 0]])])
def test_query_without_direction(query: Any) -> None:
    assert "of 'query'" in complaint(lambda: RELEASES["release_scores"](query=query))


@pytest.mark.parametrize("index", [4, -5, 1.0, "1", None, True])
def test_index_out_of_range(index: Any) -> None:
    text = complaint(lambda: RELEASES["release_row"](index=index))
    assert "must be a whole number from 0 to 3" in text


@pytest.mark.parametrize("name", ["release_row", "release_gram"])
def test_a_bad_row_is_named_by_its_own_number(name: str) -> None:
    rows = GOOD.copy()
    rows[2] = np.inf
    options = {"index": 2} if name == "release_row" else {}
    assert complaint(lambda: RELEASES[name](rows, **options)).startswith("Row 2 of 'embeddings' holds a NaN")


@pytest.mark.parametrize("name", ["release_row", "release_gram"])
def test_one_record_has_nothing_to_release(name: str) -> None:
    assert "at least two records" in complaint(lambda: RELEASES[name](GOOD[:1]))


def test_gram_options() -> None:
    for options in (
        {"projection": "magic"},
        {"max_iterations": 0},
        {"max_iterations": 1.5},
        {"denoise": "bleach"},
        {"denoise": "rank", "projection": "none"},
        {"device": "tpu"},
    ):
        assert next(iter(options)) in complaint(lambda options=options: RELEASES["release_gram"](**options))
    assert "norm" in complaint(lambda: RELEASES["release_scores"](norm="max"))
    assert "GramRadius" in complaint(lambda: RELEASES["release_scores"](adjacency=ss.GramRadius(1.0)))


def test_refusals_come_before_the_data_are_read() -> None:
    """A refused contract is refused in the same words whatever the rows are: nothing private is in the answer."""
    texts = {
        complaint(lambda rows=rows: ss.release_scores(rows, QUERY, epsilon=50, delta=0.0))
        for rows in (GOOD, -GOOD, changed((0, 0), math.nan), np.zeros((4, 3)))
    }
    assert len(texts) == 1
    refused = []
    for rows in (GOOD, -GOOD, changed((0, 0), math.nan), np.zeros((4, 3))):
        for adjacency in (ss.Replacement(), ss.Identity([0, 1, 2, 2], centroids=True)):
            with pytest.raises(ss.InvalidCalibration) as caught:
                ss.release_scores(rows, QUERY, epsilon=50, delta=1e-6, calibration="classical", adjacency=adjacency)
            refused.append(str(caught.value))
    assert len(set(refused)) == 1


budgets = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 100) | st.floats(0, 1)


@given(budgets, budgets)
def test_any_budget_is_met_or_refused(epsilon: float, delta: float) -> None:
    release, refusal = None, ""
    try:
        release = ss.release_scores(GOOD, QUERY, epsilon=epsilon, delta=delta, rng=0)
    except ss.InvalidInput as error:
        refusal = str(error)
    if release is None:
        assert refusal
        assert "\n" not in refusal
    else:
        assert release.guarantee.delta_at(epsilon) <= delta
        assert np.isfinite(release.noisy).all()
