"""PrivateNearestNeighbors: scikit-learn's own checks, one charge, released vectors only, and answers as promised."""

from __future__ import annotations

import copy
import io
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", "1.6", reason="pip install 'scoreshield[sklearn]' enables this")

from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_validate
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

import scoreshield as ss
from scoreshield.integrations.scikit_learn import CHECK_EXCEPTIONS, PickledLedger, PrivateNearestNeighbors

PAGE = Path(__file__).parents[2] / "docs" / "frameworks" / "scikit-learn.md"
RNG = np.random.default_rng(8)
ROWS = RNG.standard_normal((120, 16))
QUERIES = ROWS[:7] + 0.1 * RNG.standard_normal((7, 16))


@pytest.fixture
def fitted() -> PrivateNearestNeighbors:
    return PrivateNearestNeighbors(3, epsilon=30.0, random_state=0).fit(ROWS)


# scikit-learn's checks.


ESTIMATORS = [
    PrivateNearestNeighbors(epsilon=8.0, random_state=0),
    PrivateNearestNeighbors(epsilon=8.0, delta=1e-6, mechanism="gaussian", random_state=0),
]


@pytest.mark.parametrize(
    ("estimator", "check"),
    [pair for estimator in ESTIMATORS for pair in estimator_checks_generator(estimator)],
    ids=lambda value: getattr(getattr(value, "func", value), "__name__", getattr(value, "mechanism", "")),
)
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ss.UselessRelease)
        check(estimator)


def test_exceptions_are_those_of_the_table() -> None:
    """With the secure sampler, every check passes but those of the table; and each of the table is needed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(PrivateNearestNeighbors(epsilon=8.0), on_fail=None, on_skip=None)
    assert len(results) > 30
    missed = {result["check_name"] for result in results if result["status"] != "passed"}
    assert missed - {"check_array_api_input"} == set(CHECK_EXCEPTIONS)  # that one runs where SCIPY_ARRAY_API is set


def test_page_shows_the_table() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for name, reason in CHECK_EXCEPTIONS.items():
        assert f"| `{name}` | {reason} |" in text
    shown = re.findall(r"\| `(check_\w+)` \|", text)
    assert set(shown) == set(CHECK_EXCEPTIONS)


# What is spent.


def test_epsilon_has_no_default_and_nothing_is_charged_without_it(tmp_path: Path) -> None:
    account = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=100, delta=0).account("rows")
    with pytest.raises(ss.InvalidInput, match=r"'epsilon' parameter of PrivateNearestNeighbors.fit must be given"):
        PrivateNearestNeighbors(ledger=account).fit(ROWS)
    assert account.spent == 0


def test_fit_is_charged_once_and_queries_are_free(tmp_path: Path) -> None:
    account = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=50, delta=0).account("rows")
    neighbours = PrivateNearestNeighbors(3, epsilon=30.0, ledger=account).fit(ROWS)
    for _ in range(5):
        neighbours.kneighbors(QUERIES)
        neighbours.kneighbors_graph(QUERIES)
    assert account.spent == pytest.approx(30)
    assert neighbours.guarantee_.epsilon == 30
    assert neighbours.guarantee_.sampler == "exact"
    with pytest.raises(ss.BudgetExceeded):
        neighbours.fit(ROWS)  # a second fit is a second release
    assert account.spent == pytest.approx(30)


def test_bad_rows_cost_nothing(tmp_path: Path) -> None:
    account = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=50, delta=0).account("rows")
    bad = ROWS.copy()
    bad[3, 4] = np.nan
    for rows in (bad, ROWS[:, :1], ROWS[0]):
        with pytest.raises(ValueError, match=r"NaN|feature|two-dimensional"):
            PrivateNearestNeighbors(epsilon=30.0, ledger=account).fit(rows)
    assert account.spent == 0


# Answers.


def test_neighbours_are_those_of_the_released_index(fitted: PrivateNearestNeighbors) -> None:
    distances, places = fitted.kneighbors(QUERIES)
    best = fitted.index_.search(QUERIES, 3)
    assert np.array_equal(places, best.indices)
    assert np.array_equal(distances, np.clip(1 - best.scores, 0, 2))
    assert np.all(np.diff(distances, axis=1) >= 0)
    assert np.array_equal(fitted.kneighbors(QUERIES, 5, return_distance=False)[:, :3], places)


def test_much_epsilon_finds_what_scikit_learn_finds() -> None:
    clean = NearestNeighbors(n_neighbors=1, metric="cosine").fit(ROWS).kneighbors(QUERIES, return_distance=False)
    private = PrivateNearestNeighbors(1, epsilon=300.0).fit(ROWS).kneighbors(QUERIES, return_distance=False)
    assert np.mean(clean == private) >= 0.85
    little = PrivateNearestNeighbors(1, epsilon=0.1, random_state=1).fit(ROWS).kneighbors(QUERIES)[1]
    assert np.mean(clean == little) < 0.6


def test_neighbours_of_the_rows_leave_out_the_row_itself(fitted: PrivateNearestNeighbors) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distances, places = fitted.kneighbors()
    assert places.shape == distances.shape == (120, 3)
    assert not np.any(places == np.arange(120)[:, None])


def test_graph_has_the_neighbours(fitted: PrivateNearestNeighbors) -> None:
    distances, places = fitted.kneighbors(QUERIES)
    graph = fitted.kneighbors_graph(QUERIES)
    assert graph.shape == (7, 120)
    assert set(graph.data) == {1.0}
    assert all(set(graph[row].indices) == set(places[row]) for row in range(7))
    weighted = fitted.kneighbors_graph(QUERIES, 2, mode="distance")
    np.testing.assert_array_equal(weighted[0, places[0, :2]].toarray()[0], distances[0, :2])
    with pytest.raises(ss.InvalidInput, match=r"'mode' parameter of PrivateNearestNeighbors\.kneighbors_graph"):
        fitted.kneighbors_graph(QUERIES, mode="weights")  # type: ignore[arg-type]


def test_number_of_neighbours_is_checked(fitted: PrivateNearestNeighbors) -> None:
    with pytest.raises(ss.InvalidInput, match="Expected n_neighbors <= 120"):
        fitted.kneighbors(QUERIES, 121)
    with pytest.raises(ss.InvalidInput, match=r"'n_neighbors' parameter of PrivateNearestNeighbors.kneighbors"):
        fitted.kneighbors(QUERIES, 0)
    with pytest.raises(ss.InvalidInput, match=r"'n_neighbors' parameter of PrivateNearestNeighbors.fit"):
        PrivateNearestNeighbors(2.5, epsilon=8.0).fit(ROWS)  # type: ignore[arg-type]
    with pytest.raises(NotFittedError):
        PrivateNearestNeighbors(epsilon=8.0).kneighbors(QUERIES)


def test_worth_is_predicted_from_public_facts(fitted: PrivateNearestNeighbors) -> None:
    assert fitted.worth_ == fitted.index_.worth(3)
    assert not hasattr(PrivateNearestNeighbors(epsilon=8.0), "worth_")
    with pytest.raises(ss.InvalidInput, match="recall"):
        PrivateNearestNeighbors(epsilon=1.0, require_recall=0.9).fit(ROWS)


def test_identities_share_the_budget_or_have_one_vector_each() -> None:
    labels = np.arange(120) // 3
    raw = PrivateNearestNeighbors(3, epsilon=30.0, adjacency=ss.Identity(labels), random_state=0).fit(ROWS)
    assert raw.guarantee_.details["epsilon_per_record"] == pytest.approx(10)
    people = ss.Identity(labels, centroids=True)
    central = PrivateNearestNeighbors(3, epsilon=30.0, adjacency=people, random_state=0).fit(ROWS)
    assert central.n_samples_fit_ == 40
    assert central.kneighbors(QUERIES)[1].max() < 40


# The interface of scikit-learn.


def test_parameters_are_read_set_and_cloned(tmp_path: Path) -> None:
    account = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=50, delta=0).account("rows")
    first = PrivateNearestNeighbors(4, epsilon=8.0, ledger=account, reduction=np.eye(16)[:4])
    second = clone(first)
    assert second.ledger is account
    assert second is not first
    assert np.array_equal(second.reduction, first.reduction)
    assert second.set_params(epsilon=9.0).epsilon == 9.0
    assert first.epsilon == 8.0
    assert not hasattr(clone(first.set_params(ledger=None, epsilon=40.0).fit(ROWS)), "index_")


def test_last_step_of_a_pipeline() -> None:
    pipeline = make_pipeline(Normalizer(), PrivateNearestNeighbors(2, epsilon=40.0, random_state=0)).fit(ROWS)
    _, places = pipeline[-1].kneighbors(pipeline[:-1].transform(QUERIES))
    alone = PrivateNearestNeighbors(2, epsilon=40.0, random_state=0).fit(ROWS / np.linalg.norm(ROWS, axis=1)[:, None])
    assert np.array_equal(places, alone.kneighbors(QUERIES)[1])
    assert pipeline.set_params(privatenearestneighbors__epsilon=5.0)[-1].epsilon == 5.0


def test_names_of_features_are_kept_and_checked() -> None:
    pandas = pytest.importorskip("pandas", reason="pip install pandas enables this")
    frame = pandas.DataFrame(ROWS, columns=[f"f{place}" for place in range(16)])
    neighbours = PrivateNearestNeighbors(2, epsilon=8.0, random_state=0).fit(frame)
    assert list(neighbours.feature_names_in_) == list(frame.columns)
    assert neighbours.n_features_in_ == 16
    with pytest.raises(ValueError, match="feature names"):
        neighbours.kneighbors(frame.rename(columns={"f0": "other"}))
    with pytest.raises(ValueError, match="now missing"):
        neighbours.kneighbors(frame.iloc[:, :15])


def test_random_state_is_research_mode() -> None:
    for make in (lambda: 3, lambda: np.random.RandomState(3), lambda: np.random.default_rng(3)):
        first, second = (PrivateNearestNeighbors(2, epsilon=8.0, random_state=make()).fit(ROWS) for _ in range(2))
        assert np.array_equal(first.index_.vectors, second.index_.vectors)
        assert first.guarantee_.sampler == "research"
        assert "NOT PRIVATE" in str(first.guarantee_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ss.UselessRelease)
        one, other = (PrivateNearestNeighbors(2, epsilon=8.0).fit(ROWS) for _ in range(2))
    assert not np.array_equal(one.index_.vectors, other.index_.vectors)
    with pytest.raises(ss.InvalidInput, match="rng"):
        PrivateNearestNeighbors(2, epsilon=8.0, random_state="seed").fit(ROWS)  # type: ignore[arg-type]


# Only released data leave.


class Arrays(pickle.Pickler):
    """Lists every array that a pickle holds."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.found: list[np.ndarray] = []

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            self.found.append(value)
        return NotImplemented


def test_pickle_holds_released_vectors_only_and_answers_alike(tmp_path: Path) -> None:
    account = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=50, delta=0).account("rows")
    neighbours = PrivateNearestNeighbors(3, epsilon=30.0, ledger=account).fit(ROWS)
    pickler = Arrays()
    pickler.dump(neighbours)
    assert [array.shape for array in pickler.found] == [(120, 16)]
    assert np.array_equal(pickler.found[0], neighbours.index_.vectors)
    loaded = pickle.loads(pickle.dumps(neighbours))
    assert isinstance(loaded.ledger, PickledLedger)
    assert loaded.guarantee_ == neighbours.guarantee_
    for one, other in zip(loaded.kneighbors(QUERIES), neighbours.kneighbors(QUERIES), strict=True):
        assert np.array_equal(one, other)


def test_unpickled_fit_needs_its_ledger(tmp_path: Path) -> None:
    """Nothing is released without a charge, in this process or in a worker."""
    account = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=100, delta=0).account("rows")
    neighbours = PrivateNearestNeighbors(3, epsilon=30.0, ledger=account)
    loaded = pickle.loads(pickle.dumps(neighbours))
    for again in (loaded, clone(loaded), copy.copy(loaded), copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        with pytest.raises(ss.InvalidInput, match=r"set_params\(ledger=\.\.\.\)"):
            again.fit(ROWS)
        assert not hasattr(again, "index_")
    with pytest.raises(ValueError, match=r"(?s)All the 2 fits failed.*set_params\(ledger=\.\.\.\)"):
        cross_validate(neighbours, ROWS, cv=2, n_jobs=2, scoring=lambda *_: 0.0)
    assert account.spent == 0
    loaded.set_params(ledger=account).fit(ROWS)
    assert account.spent == pytest.approx(30)
    assert pickle.loads(pickle.dumps(PrivateNearestNeighbors(3, epsilon=30.0))).ledger is None


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, clone])
def test_copies_charge_the_same_ledger(duplicate: Any, tmp_path: Path) -> None:
    account = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=100, delta=0).account("rows")
    neighbours = PrivateNearestNeighbors(3, epsilon=30.0, ledger=account, reduction=np.eye(16)[:4]).fit(ROWS)
    second = duplicate(neighbours)
    assert second.ledger is account
    assert (second.reduction is neighbours.reduction) == (duplicate is copy.copy)
    second.fit(ROWS)
    assert account.spent == pytest.approx(60)
    assert second.index_ is not neighbours.index_


def _frame(rows: Any) -> Any:
    return pytest.importorskip("pandas", reason="pip install pandas enables this").DataFrame(rows)


SECRET = 0.123456789
BAD_ROWS: dict[str, Any] = {
    "complex": lambda: np.full((20, 3), SECRET + 1j),
    "complex list": lambda: [[SECRET + 1j, SECRET]] * 20,
    "complex frame": lambda: _frame(np.full((20, 3), SECRET + 1j)),
    "complex sparse": lambda: csr_array(np.full((20, 3), SECRET + 1j)),
    "sparse": lambda: csr_array(np.full((20, 3), SECRET)),
    "vector": lambda: np.full(20, SECRET),
    "list": lambda: [SECRET] * 20,
    "cube": lambda: np.full((3, 3, 3), SECRET),
    "number": lambda: SECRET,
    "text": lambda: str(SECRET),
    "texts": lambda: np.full((20, 3), str(SECRET)),
    "bytes": lambda: np.full((20, 3), str(SECRET).encode()),
    "dates": lambda: np.full((20, 3), 123456789, dtype="M8[s]"),
    "date frame": lambda: _frame(np.full((20, 3), 123456789, dtype="M8[s]")),
    "objects": lambda: np.array([[complex(SECRET), 1.0]] * 20, dtype=object),
    "mapping": lambda: {"a": SECRET}.values(),
    "masked": lambda: np.ma.masked_array(np.full((20, 3), SECRET), mask=np.eye(20, 3, dtype=bool)),
    "list of masked rows": lambda: [np.ones(3), np.ma.masked_array(np.full(3, SECRET), mask=[True, False, False])],
    "release": lambda: [[SECRET, 1.0], ss.release_scores(ROWS, ROWS[0], epsilon=1.0, delta=1e-6)],
    "infinite": lambda: [[SECRET, np.inf]] * 20,
    "one column": lambda: np.full((20, 1), SECRET),
    "empty": lambda: np.empty((0, 3)),
}


@pytest.mark.parametrize("form", BAD_ROWS)
def test_bad_rows_are_rejected_without_their_values(form: str) -> None:
    """The messages of scikit-learn would show the rows; masked, binary and dated rows would be used as numbers."""
    with pytest.raises((ss.InvalidInput, TypeError)) as caught:
        PrivateNearestNeighbors(epsilon=8.0).fit(BAD_ROWS[form]())
    text = str(caught.value)
    assert "1234" not in text
    assert "1973" not in text
    assert "\n" not in text
    assert caught.value.__context__ is None


def test_rows_are_read_once() -> None:
    """An object that gives other rows at each reading is fitted to the rows that were checked."""

    class Changing:
        readings = 0

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            self.readings += 1
            return ROWS if self.readings == 1 else np.full_like(ROWS, np.nan)

    assert PrivateNearestNeighbors(2, epsilon=8.0, random_state=0).fit(Changing()).n_samples_fit_ == 120


def test_errors_show_no_value_of_the_rows() -> None:
    rows = ROWS.astype(object)
    rows[2, 3] = "secret-name"
    for bad in (rows, [["1.5", "secret-name"], ["2", "3"]]):
        with pytest.raises(ss.InvalidInput) as caught:
            PrivateNearestNeighbors(epsilon=8.0).fit(bad)
        assert "secret-name" not in str(caught.value)
        assert caught.value.__context__ is None


def test_frame_with_texts_shows_no_value() -> None:
    pandas = pytest.importorskip("pandas", reason="pip install pandas enables this")
    frame = pandas.DataFrame({"age": [1.0, 2.0], "name": ["secret-name", "3"]})
    with pytest.raises(ss.InvalidInput) as caught:
        PrivateNearestNeighbors(epsilon=8.0).fit(frame)
    assert "secret-name" not in str(caught.value)


def test_frames_of_errors_hold_no_rows() -> None:
    bad = ROWS.copy()
    bad[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity") as caught:
        PrivateNearestNeighbors(epsilon=8.0).fit(bad)
    frame = caught.value.__traceback__
    held = []
    while frame is not None:
        if frame.tb_frame.f_code is not sys._getframe().f_code:
            held += [value for value in frame.tb_frame.f_locals.values() if isinstance(value, np.ndarray)]
        frame = frame.tb_next
    assert held == []


def test_repr_shows_parameters_only(fitted: PrivateNearestNeighbors) -> None:
    assert repr(fitted) == "PrivateNearestNeighbors(epsilon=30.0, n_neighbors=3, random_state=0)"


def test_missing_package_is_one_sentence() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "try:\n    import scoreshield.integrations.scikit_learn\n"
        "except ValueError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'scoreshield[sklearn]'" in done.stdout
