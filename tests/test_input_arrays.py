"""Embeddings, queries and scores as tensors, data frames, columns and lists: the same release as from NumPy."""

from __future__ import annotations

import sys
import traceback
from collections import UserList, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import decisions, plan, tasks
from scoreshield._validation import check_array, to_array

N, D = 12, 4
ROWS = np.random.default_rng(1).standard_normal((N, D)).astype(np.float32)
QUERY = np.random.default_rng(2).standard_normal(D).astype(np.float32)
CONTRACT: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "rng": 3}
PANDAS, POLARS, TORCH = "pip install 'scoreshield[frames]'", "pip install 'scoreshield[frames]'", "pip install torch"


def pandas() -> Any:
    return pytest.importorskip("pandas", reason=f"no pandas: {PANDAS}")


def polars() -> Any:
    return pytest.importorskip("polars", reason=f"no polars: {POLARS}")


def torch() -> Any:
    return pytest.importorskip("torch", reason=f"no PyTorch: {TORCH}")


#: Forms that keep single precision.
SINGLE: dict[str, Any] = {
    "pandas frame": lambda rows: pandas().DataFrame(rows),
    "polars frame": lambda rows: polars().DataFrame(rows),
    "tensor": lambda rows: torch().tensor(rows),
    "tensor with grad": lambda rows: torch().tensor(rows, requires_grad=True),
    "parameter": lambda rows: torch().nn.Parameter(torch().tensor(rows)),
    "result with grad": lambda rows: torch().tensor(rows, requires_grad=True) * 1.0,
    "polars arrays": lambda rows: polars().Series("vector", rows),
}
#: Forms that are read record by record, and so in double precision.
DOUBLE: dict[str, Any] = {
    "list of arrays": list,
    "tuple of arrays": tuple,
    "list of tensors": lambda rows: list(torch().tensor(rows)),
    "list of tensors with grad": lambda rows: list(torch().tensor(rows, requires_grad=True)),
    "list of arrays and tensors": lambda rows: [torch().tensor(rows[0]), *rows[1:]],
    "list of columns": lambda rows: [pandas().Series(row) for row in rows],
    "pandas vectors": lambda rows: pandas().Series(list(rows)),
    "pandas lists": lambda rows: pandas().Series(rows.tolist()),
    "pandas tensors": lambda rows: pandas().Series(list(torch().tensor(rows))),
    "polars lists": lambda rows: polars().Series("vector", rows.tolist()),
}
NULLABLE = ("Float32", "Float64", "float[pyarrow]")


@pytest.mark.parametrize("form", SINGLE)
def test_same_release_in_single_precision(form: str) -> None:
    expected = ss.release_scores(ROWS, QUERY, **CONTRACT)
    assert ss.release_scores(SINGLE[form](ROWS), QUERY, **CONTRACT) == expected


@pytest.mark.parametrize("form", DOUBLE)
def test_same_release_in_double_precision(form: str) -> None:
    expected = ss.release_scores(ROWS.astype(np.float64), QUERY, **CONTRACT)
    assert ss.release_scores(DOUBLE[form](ROWS), QUERY, **CONTRACT) == expected


@pytest.mark.parametrize("form", [*SINGLE, *DOUBLE])
def test_other_releases(form: str) -> None:
    """Every release and store takes every form, of records and of queries."""
    make = {**SINGLE, **DOUBLE}[form]
    rows, queries = make(ROWS), make(ROWS[:3])
    plain = ROWS if form in SINGLE else ROWS.astype(np.float64)
    pure: dict[str, Any] = {"epsilon": 4.0, "rng": 3}
    assert ss.release_gram(rows, **CONTRACT) == ss.release_gram(plain, **CONTRACT)
    assert ss.release_row(rows, 1, **CONTRACT) == ss.release_row(plain, 1, **CONTRACT)
    assert ss.release_index(rows, **pure) == ss.release_index(plain, **pure)
    assert ss.release_batch(rows, queries, k=2, **pure) == ss.release_batch(plain, plain[:3], k=2, **pure)
    assert np.array_equal(
        ss.release_scores(rows, queries, **CONTRACT).noisy, ss.release_scores(plain, plain[:3], **CONTRACT).noisy
    )
    search = ss.PrivateSearch(rows, epsilon=20.0)
    assert search.dimension == D
    assert len(search.search_batch(queries, k=2)) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: pandas().Series(QUERY),
        lambda: polars().Series(QUERY),
        lambda: torch().tensor(QUERY, requires_grad=True),
        lambda: [torch().tensor(value, requires_grad=True) for value in QUERY],
        lambda: list(QUERY),
    ],
    ids=["pandas", "polars", "tensor", "list of numbers", "list"],
)
def test_queries_and_scores(make: Any) -> None:
    """One query, or a sample of scores, is a column, a tensor or a list."""
    given = make()
    expected = ss.release_scores(ROWS, QUERY, **CONTRACT)
    assert ss.release_scores(ROWS, given, **CONTRACT) == expected
    index = ss.release_index(ROWS, epsilon=4.0, rng=3)
    assert np.array_equal(index.search(given, 3).indices, index.search(QUERY, 3).indices)
    assert decisions.false_match_rate(given, 0.1, 0.5) == decisions.false_match_rate(QUERY, 0.1, 0.5)


def test_plans_take_frames_and_tensors() -> None:
    scores = np.random.default_rng(4).normal(0.0, 0.1, 300)
    need: dict[str, Any] = {"target_fmr": 0.05, "epsilon": 4.0, "delta": 1e-6, "source": "public"}
    expected = plan.verification(scores, **need)
    for given in (pandas().Series(scores), torch().tensor(scores, requires_grad=True)):
        assert plan.verification(given, **need).to_dict() == expected.to_dict()
        bits = [ss.accept_bit(4.0, impostor=one, false_match_rate=0.05).threshold for one in (given, scores)]
        assert bits[0] == bits[1]


def test_labels_of_a_column() -> None:
    """Texts in a column of a frame are labels, as in a list."""
    names = [f"person {place // 3}" for place in range(N)]
    expected = ss.Identity(names)
    assert ss.Identity(pandas().Series(names)).identities == expected.identities
    gram = ss.release_gram(ROWS, **CONTRACT)
    pytest.importorskip("sklearn", reason="no scikit-learn: pip install 'scoreshield[tasks]'")
    assert tasks.knn_accuracy(gram, pandas().Series(names), k=1) == tasks.knn_accuracy(gram, names, k=1)


def test_ids_of_a_column() -> None:
    store = ss.stores.ArrayStore(pandas().DataFrame(ROWS), ids=pandas().Series([f"r{place}" for place in range(N)]))
    assert store.ids()[1] == "r1"
    assert ss.stores.ArrayStore(ROWS, ids=pandas().Series(range(N)))._ids == list(range(N))


def test_bfloat16() -> None:
    """Half precision of PyTorch is read without loss, with a gradient too."""
    half = torch().tensor(ROWS).bfloat16()
    exact = half.float().numpy()
    for given in (half, torch().nn.Parameter(half), half.clone().requires_grad_()):
        assert ss.release_scores(given, QUERY, **CONTRACT) == ss.release_scores(exact, QUERY, **CONTRACT)
    double = ss.release_scores(exact.astype(np.float64), QUERY, **CONTRACT)
    assert ss.release_scores(list(half), QUERY, **CONTRACT) == double
    query = torch().tensor(QUERY).bfloat16()
    assert ss.release_scores(ROWS, query, **CONTRACT) == ss.release_scores(ROWS, query.float().numpy(), **CONTRACT)


def test_tensor_is_not_changed() -> None:
    tensor = torch().tensor(ROWS, requires_grad=True)
    ss.release_scores(tensor, QUERY, **CONTRACT)
    assert tensor.requires_grad
    assert np.array_equal(tensor.detach().numpy(), ROWS)


@pytest.mark.parametrize("dtype", NULLABLE)
def test_nullable_numbers(dtype: str) -> None:
    """Nullable columns of pandas are numbers; a missing one is reported by its row."""
    if "pyarrow" in dtype:
        pytest.importorskip("pyarrow", reason="no PyArrow: pip install 'scoreshield[parquet]'")
    frame = pandas().DataFrame(ROWS).astype(dtype)
    assert ss.release_scores(frame, QUERY, **CONTRACT).noisy.shape == (N,)
    frame.iloc[2, 1] = pandas().NA
    with pytest.raises(ss.InvalidInput, match="Row 2 of 'embeddings' holds a NaN"):
        ss.release_scores(frame, QUERY, **CONTRACT)


def test_missing_numbers_of_polars() -> None:
    frame = polars().DataFrame({"a": [1.0, None], "b": [1.0, 2.0]})
    with pytest.raises(ss.InvalidInput, match="Row 1 of 'embeddings' holds a NaN"):
        ss.release_scores(frame, [1.0, 2.0], **CONTRACT)


def test_one_row_sets_no_precision() -> None:
    """A column of vectors is double, whatever the precision of one of them."""
    rows = [*ROWS[:-1], ROWS[-1].astype(np.float64)]
    for given in (rows, pandas().Series(rows)):
        assert to_array(given).dtype == np.float64
    assert to_array(pandas().Series(list(ROWS))).dtype == np.float64


REJECTED: dict[str, Any] = {
    "object array": lambda: ROWS.astype(object),
    "object array of vectors": lambda: np.array([*ROWS, None], dtype=object)[:-1],
    "ragged list": lambda: [[1.0, 2.0], [3.0]],
    "ragged list of arrays": lambda: [ROWS[0], ROWS[1, :2]],
    "ragged list of tensors": lambda: [torch().ones(3), torch().ones(2)],
    "ragged pandas column": lambda: pandas().Series([[1.0, 2.0], [3.0]]),
    "ragged polars column": lambda: polars().Series([[1.0, 2.0], [3.0]]),
    "pandas texts": lambda: pandas().DataFrame({"a": ["x", "secret"], "b": [1.0, 2.0]}),
    "pandas text column": lambda: pandas().Series(["x", "secret"]),
    "pandas dates": lambda: pandas().DataFrame({"a": pandas().to_datetime(["2020-01-01"])}),
    "polars texts": lambda: polars().DataFrame({"a": ["secret"]}),
    "sparse tensor": lambda: torch().tensor(ROWS).to_sparse(),
    "complex tensor": lambda: torch().tensor(ROWS).to(torch().complex64),
    "tensor of eight bits": lambda: torch().tensor(ROWS).to(torch().float8_e4m3fn),
    "tensor without values": lambda: torch().empty(N, D, device="meta"),
    "dictionary": lambda: {"a": [1.0]},
}


@pytest.mark.parametrize("form", REJECTED)
def test_rejected_forms(form: str) -> None:
    """What is no matrix of numbers raises one sentence, which holds no value and no other error."""
    given = REJECTED[form]()
    with pytest.raises(ss.InvalidInput) as caught:
        ss.release_scores(given, QUERY, **CONTRACT)
    text = str(caught.value)
    assert text.startswith(
        "The 'embeddings' parameter of release_scores must be a two-dimensional array of real numbers"
    )
    assert "\n" not in text
    assert "secret" not in text
    assert len(text) < 300
    assert caught.value.__context__ is None, "an error of another library may show a value"


def _masked() -> Any:
    return np.ma.masked_array(ROWS[0], mask=[True, False, False, False])


def _release() -> Any:
    return ss.release_scores(ROWS, QUERY, **CONTRACT)


MASKED: dict[str, Any] = {
    "array": lambda: np.ma.masked_array(ROWS, mask=ROWS > 1),
    "list": lambda: [ROWS[1], _masked()],
    "tuple": lambda: (ROWS[1].tolist(), _masked()),
    "deque": lambda: deque([ROWS[1], _masked()]),
    "list type": lambda: UserList([ROWS[1], _masked()]),
    "list with a tensor": lambda: [torch().tensor(ROWS[1]), _masked()],
    "one value": lambda: [[1.0, np.ma.masked], [1.0, 2.0]],
    "pandas column": lambda: pandas().Series([ROWS[1], _masked()]),
    "polars column": lambda: polars().Series([ROWS[1], _masked()], dtype=polars().Object),
}


@pytest.mark.parametrize("form", MASKED)
def test_masked_values_are_not_used(form: str) -> None:
    """A mask at any place is found; NumPy would read what it hides."""
    with pytest.raises(ss.InvalidInput, match=r"'embeddings' .* must be an array without a mask"):
        ss.release_scores(MASKED[form](), QUERY, **CONTRACT)


@pytest.mark.parametrize("wrap", [list, tuple, deque, UserList])
def test_releases_in_sequences_are_rejected(wrap: Any) -> None:
    for rows in ([_release(), ROWS[0]], [ROWS[0], _release()]):
        with pytest.raises(ss.InvalidInput, match="must be a two-dimensional array of real numbers"):
            ss.release_scores(wrap(rows), QUERY, **CONTRACT)


def test_frames_with_a_column_of_vectors() -> None:
    """The error names the column to pass, and no value; a lazy frame is collected first."""
    frames = (
        pandas().DataFrame({"id": range(N), "v": list(ROWS)}),
        pandas().DataFrame({"v": ROWS.tolist()}),
        polars().DataFrame({"id": range(N), "v": ROWS.tolist()}),
    )
    for frame in frames:
        for call in (
            lambda f: ss.release_scores(f, QUERY, **CONTRACT),
            lambda f: ss.PrivateSearch(f, epsilon=8, rng=1),
        ):
            with pytest.raises(
                ss.InvalidInput, match=r"pass the column that holds the vectors, such as frame\['v'\]\.$"
            ):
                call(frame)
        assert ss.release_scores(frame["v"], QUERY, **CONTRACT).noisy.shape == (N,)
    lazy = polars().DataFrame(ROWS).lazy()
    for call in (lambda f: ss.release_scores(f, QUERY, **CONTRACT), lambda f: ss.PrivateSearch(f, epsilon=8, rng=1)):
        with pytest.raises(ss.InvalidInput, match=r"collect\(\) it first"):
            call(lazy)


class Unreadable:
    """An array whose library fails."""

    shape = (2, 2)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise self.error


def test_errors_of_other_libraries() -> None:
    """A failed conversion is one sentence; a full memory and an unreadable disk stay what they are."""
    with pytest.raises(ss.InvalidInput, match="must be an array") as caught:
        check_array(Unreadable(RuntimeError("0.123456")), "x", "an array")
    assert "0.123456" not in str(caught.value)
    for error in (MemoryError(), OSError("disk")):
        with pytest.raises(type(error)):
            check_array(Unreadable(error), "x", "an array")


def test_frame_with_a_column_called_guarantee() -> None:
    frame = pandas().DataFrame(ROWS, columns=["guarantee", "b", "c", "d"])
    assert ss.release_scores(frame, QUERY, **CONTRACT) == ss.release_scores(ROWS, QUERY, **CONTRACT)


def test_conversion_loads_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "pandas", "polars"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert np.array_equal(to_array(ROWS.tolist()), ROWS)
    assert not {"torch", "pandas", "polars"} & set(sys.modules)


@pytest.mark.parametrize("form", [*SINGLE, *DOUBLE])
@pytest.mark.parametrize(
    "release",
    [
        lambda rows: ss.release_scores(rows, QUERY, **CONTRACT),
        lambda rows: ss.release_index(rows, epsilon=4.0, rng=3),
        lambda rows: ss.PrivateSearch(rows, epsilon=4.0),
        lambda rows: ss.release_scores(rows, QUERY[:2], **CONTRACT),
    ],
    ids=["scores", "index", "search", "wrong query"],
)
def test_errors_keep_no_records(form: str, release: Any) -> None:
    """No frame of the library keeps the rows that an error is about, in their own form or as an array."""
    rows = ROWS.copy()
    rows[3, 2] = np.nan
    given = {**SINGLE, **DOUBLE}[form](rows)
    with pytest.raises(ss.ScoreShieldError) as caught:
        release(given)
    library = str(Path(ss.__file__).parent)
    errors: list[BaseException | None] = [caught.value]
    while errors:
        error = errors.pop()
        if error is None:
            continue
        errors += [error.__cause__, error.__context__]
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        inside = [frame for frame in frames if frame.f_code.co_filename.startswith(library)]
        assert inside or error is not caught.value
        held = [value for frame in inside for value in frame.f_locals.values()]
        assert not [value for value in held if value is given or hasattr(value, "__array__") or isinstance(value, list)]
