"""A Gram release on another device, and the unit vectors that it keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import assert_feasible

import scoreshield as ss
from scoreshield.geometry import elliptope, spectrum
from scoreshield.geometry.denoise import METHODS
from scoreshield.releases import gram as gram_module
from scoreshield.releases import results

CONTRACT = {"epsilon": 20.0, "delta": 1e-5, "adjacency": ss.GramRadius(2.0), "rng": 0}


def draw_rows(n: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((n, 12)) * 0.8 ** np.arange(12)


@pytest.mark.parametrize("n", [40, 320])
@pytest.mark.parametrize("method", [name for name in METHODS if name != "none"])
def test_same_release_on_pytorch(method: str, n: int) -> None:
    """The noise is the same and the estimate agrees, for every denoiser."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    rows = draw_rows(n)
    here = ss.release_gram(rows, denoise=method, **CONTRACT)
    there = ss.release_gram(rows, denoise=method, device="torch", **CONTRACT)
    assert np.array_equal(here.noisy, there.noisy)
    assert isinstance(there.gram, np.ndarray)
    assert_feasible(there.gram)
    assert there.denoise == here.denoise
    assert there.converged
    assert np.linalg.norm(there.gram - here.gram) <= 1e-5 * np.linalg.norm(here.gram)
    for name, risk in here.risks.items():
        assert there.risks[name] == pytest.approx(risk, rel=1e-3, abs=1e-6)


def test_matrix_moves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One matrix goes to the device, and the estimate and its vectors come back."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    to_device, to_numpy = gram_module.to_device, gram_module.to_numpy
    moved: list[tuple[str, tuple[int, ...]]] = []

    def count_to(matrix: np.ndarray, device: str) -> object:
        moved.append(("to", matrix.shape))
        return to_device(matrix, device)

    def count_from(array: object) -> np.ndarray:
        back = to_numpy(array)
        moved.append(("from", back.shape))
        return back

    def never(_: object) -> np.ndarray:
        raise AssertionError("a matrix left the device during the projection")

    monkeypatch.setattr(gram_module, "to_device", count_to)
    monkeypatch.setattr(gram_module, "to_numpy", count_from)
    monkeypatch.setattr(elliptope, "to_numpy", never)
    release = ss.release_gram(draw_rows(330), device="torch", **CONTRACT)
    rank = release.embeddings().shape[1]
    assert moved == [("to", (330, 330)), ("from", (330, 330)), ("from", (330, rank))]


def test_failed_gpu_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU projects what a GPU cannot. An error of the code itself is raised, on each device."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    project_array = gram_module.project_array

    def fail_with(error: Exception, *, everywhere: bool = False) -> None:
        def project(matrix: object, *arguments: object, **options: object) -> object:
            if everywhere or not isinstance(matrix, np.ndarray):
                raise error
            return project_array(matrix, *arguments, **options)

        monkeypatch.setattr(gram_module, "project_array", project)

    expected = ss.release_gram(draw_rows(330), **CONTRACT)
    for error in (
        torch.cuda.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory"),  # of a pinned buffer
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ):
        fail_with(error)
        with pytest.warns(UserWarning, match=f"'torch' failed with {type(error).__name__}: the projection runs on the"):
            assert ss.release_gram(draw_rows(330), device="torch", **CONTRACT) == expected
    for error, device in ((RuntimeError("of the CPU"), "cpu"), (TypeError("a mistake"), "torch")):
        fail_with(error, everywhere=True)
        with pytest.raises(type(error), match=str(error)):
            ss.release_gram(draw_rows(330), device=device, **CONTRACT)


@pytest.mark.parametrize("error", [ss.InvalidInput("newton needs about 48.0 GiB"), MemoryError()])
def test_full_memory_loses_nothing(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A charged release whose projection does not fit keeps its noisy matrix, also where warnings are errors."""
    account = ss.Ledger.create("sqlite:///" + str(tmp_path / "l.db"), epsilon=50, delta=1e-4).account("docs")
    contract = {**CONTRACT, "rng": None, "ledger": account}

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(gram_module, "project_array", fail)
    release = ss.release_gram(draw_rows(40), **contract)
    assert (release.projection, release.converged) == ("none", False)
    assert np.array_equal(release.gram, release.noisy)
    assert len(account.entries()) == 1
    release.save(tmp_path / "release.npz")
    assert ss.load(tmp_path / "release.npz") == release
    with pytest.warns(UserWarning, match="noisy matrix is released without it"):
        ss.release_gram(draw_rows(40), **contract)


def test_vectors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """`embeddings` decomposes nothing of the matrix's size, and agrees with the decomposition of the matrix."""
    release = ss.release_gram(draw_rows(330), **CONTRACT)
    expected = elliptope.factor_gram(release.gram)
    fewer = elliptope.factor_gram(release.gram, 6)

    def never(*_: object) -> None:
        raise AssertionError("the matrix was decomposed")

    monkeypatch.setattr(results, "factor_gram", never)
    vectors = release.embeddings()
    assert vectors.shape == expected.shape
    assert np.abs(vectors @ vectors.T - release.gram).max() < 1e-10
    assert release.embeddings(6) @ release.embeddings(6).T == pytest.approx(fewer @ fewer.T, abs=1e-6)
    assert np.linalg.norm(release.embeddings(6), axis=1) == pytest.approx(1.0, abs=1e-12)
    annotated = release.annotate(dataset="letters")
    assert annotated.embeddings().shape == vectors.shape
    assert release.factored().factor.shape == vectors.shape
    with pytest.raises(AssertionError, match="decomposed"):
        ss.release_gram(draw_rows(40), **CONTRACT).embeddings()


def count_decompositions(monkeypatch: pytest.MonkeyPatch, size: int) -> list[int]:
    """Collect the decompositions of symmetric matrices of this size, by NumPy or SciPy, from now on."""
    found: list[int] = []

    def watch(module: object, name: str) -> None:
        original = getattr(module, name)

        def decompose(matrix: np.ndarray, *arguments: object, **options: object) -> object:
            if len(matrix) == size:
                found.append(size)
            return original(matrix, *arguments, **options)

        monkeypatch.setattr(module, name, decompose)

    watch(np.linalg, "eigh")
    watch(np.linalg, "eigvalsh")
    watch(np.linalg, "svd")
    watch(spectrum, "eigh")
    return found


def test_no_decomposition_where_the_factor_is_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the projection nor the vectors of any dimension decompose a matrix of the collection's size."""
    n = 330
    found = count_decompositions(monkeypatch, n)
    release = ss.release_gram(draw_rows(n), **CONTRACT)
    assert release.denoise == "projection"
    for rank in (None, 1, 6):
        release.embeddings(rank)
    factored = release.factored()
    smaller = factored.embeddings(6)
    assert not found
    expected = elliptope.factor_gram(release.gram, 6)
    assert found == [n]  # so decompositions are counted
    assert smaller @ smaller.T == pytest.approx(expected @ expected.T, abs=1e-6)


@pytest.mark.parametrize("denoise", ["projection", "rank"])
def test_a_charged_release_keeps_its_vectors(denoise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate of a charged release names its entry, and the vectors are at hand all the same."""
    n = 700
    account = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=100, delta=1e-3).account("letters")
    rows = np.random.default_rng(5).standard_normal((n, 4))
    release = ss.release_gram(rows, denoise=denoise, ledger=account, **{**CONTRACT, "rng": None})
    assert release.guarantee.provenance.dataset == "letters"
    found = count_decompositions(monkeypatch, n)
    kept = release.embeddings()
    assert release.embeddings(2).shape == (n, 2)
    assert not found
    assert np.abs(kept @ kept.T - release.gram).max() < 1e-10


@pytest.mark.parametrize("denoise", ["rank", "shrinkage"])
def test_denoisers_without_a_decomposition(denoise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leading eigenvectors that stand out need no decomposition, and ``rank`` keeps its unit rows."""
    n = 700
    found = count_decompositions(monkeypatch, n)
    rows = np.random.default_rng(5).standard_normal((n, 4))
    release = ss.release_gram(rows, denoise=denoise, **CONTRACT)
    assert not found
    values, vectors = np.linalg.eigh(release.noisy)
    if denoise == "rank":
        found.clear()
        kept = release.embeddings()
        assert not found
        assert kept.shape == (n, 4)
        assert np.abs(kept @ kept.T - release.gram).max() < 1e-12
        best = vectors[:, -4:] * np.sqrt(values[-4:])
        best /= np.linalg.norm(best, axis=1, keepdims=True)
        assert np.abs(best @ best.T - release.gram).max() < 1e-8


def test_probes_start_from_known_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe of "sure" projects again with fewer steps, and finds the same as from a cold start."""
    steps: list[int] = []
    project = gram_module.project_array

    def count(*arguments: object, warm: object, **options: object) -> object:
        found = project(*arguments, warm=None if is_cold else warm, **options)
        steps.append(found.iterations)
        return found

    monkeypatch.setattr(gram_module, "project_array", count)
    contract = CONTRACT | {"epsilon": 2.0}
    is_cold = False
    warm = ss.release_gram(draw_rows(400), denoise="sure", **contract)
    assert len(steps) == 4
    assert steps[2] < steps[0]
    is_cold = True
    cold = ss.release_gram(draw_rows(400), denoise="sure", **contract)
    for name, risk in cold.risks.items():
        assert warm.risks[name] == pytest.approx(risk, rel=1e-3, abs=1e-6)


def test_vectors_are_not_part_of_the_release(tmp_path: object) -> None:
    """A file does not hold them, and a loaded release is equal and finds them again."""
    release = ss.release_gram(draw_rows(330), **CONTRACT)
    path = f"{tmp_path}/gram.npz"
    release.save(path)
    back = ss.load(path)
    assert back == release
    with np.load(path) as file:
        assert "_rows" not in file.files
    assert back.embeddings().shape == release.embeddings().shape
