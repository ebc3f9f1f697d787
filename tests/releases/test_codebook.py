"""An index over a public codebook: its codes, its law, its scores, its trial on public data, its files, bad input."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

import scoreshield as ss
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.response import SetResponse
from scoreshield.releases import codebook as module
from scoreshield.releases.codebook import CodebookRelease, CodebookTrial, PublicCodebook

Array = np.ndarray


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.fixture
def domain(rng: np.random.Generator) -> Array:
    """Rows around forty topics, as a corpus has them: two halves of it are of one domain."""
    topics = rng.standard_normal((40, 24))
    return topics[rng.integers(0, 40, 900)] + 0.35 * rng.standard_normal((900, 24))


@pytest.fixture
def book(domain: Array) -> PublicCodebook:
    return PublicCodebook(domain[:300], source="Half of the test rows.")


class TestCodes:
    def test_one_codeword_is_the_nearest(self, book: PublicCodebook, domain: Array) -> None:
        """Against a plain loop in double precision."""
        center = unit(domain[:300]).mean(axis=0)
        words, rows = unit(unit(domain[:300]) - center), unit(unit(domain[300:]) - center)
        found = book.encode(unit(domain[300:]), 1)[:, 0]
        assert np.abs((rows * words[found]).sum(axis=1) - (rows @ words.T).max(axis=1)).max() < 1e-5

    def test_further_codewords_turn_the_sum_nearest(self, book: PublicCodebook, domain: Array) -> None:
        """Each step is the best of all codewords that are left, by brute force."""
        center = unit(domain[:300]).mean(axis=0)
        words, rows = unit(unit(domain[:300]) - center), unit(unit(domain[300:340]) - center)
        codes = book.encode(unit(domain[300:340]), 4)
        for row, code in zip(rows, codes, strict=True):
            for step in range(1, 4):
                left = [word for word in range(300) if word not in code[:step]]
                reached = [float(unit(words[code[:step]].sum(axis=0) + words[word]) @ row) for word in left]
                assert reached[left.index(code[step])] > max(reached) - 1e-5
        assert all(len(set(code)) == 4 for code in codes.tolist())

    def test_codes_need_their_own_row_only(self, book: PublicCodebook, domain: Array) -> None:
        """Another record beside it, or another block, changes no code."""
        rows = unit(domain[300:400])
        codes = book.encode(rows, 3)
        changed = rows.copy()
        changed[7] = -changed[7]
        assert np.array_equal(np.delete(book.encode(changed, 3), 7, 0), np.delete(codes, 7, 0))

    def test_a_row_at_the_center_has_a_code(self, book: PublicCodebook) -> None:
        """No error distinguishes a record that equals the center, or a zero record."""
        rows = np.stack([book.center / np.linalg.norm(book.center), np.zeros(24)])
        assert ss.release_index(rows, epsilon=3.0, codebook=book, rng=1).codes.shape == (2, 1)
        centered = PublicCodebook(np.eye(4), center=[0.5, 0, 0, 0])
        assert centered.encode(np.array([[1.0, 0, 0, 0]]), 1).tolist() == [[0]]

    def test_size_follows_the_rule(self, book: PublicCodebook) -> None:
        for epsilon in (1.0, 7.6, 7.8, 12.7, 12.8, 17.9, 18.0):
            allowed = [size for size in range(1, 150) if math.log(math.comb(300, size)) + 2 <= epsilon]
            assert book.choose_size(epsilon) == max(allowed, default=1)
        assert PublicCodebook(np.eye(3)).choose_size(500.0) == 1  # half of the codewords, at most
        assert PublicCodebook(np.eye(8), code_size=5).choose_size(1.0) == 5

    def test_size_stops_where_codewords_no_longer_help(self, rng: np.random.Generator) -> None:
        """At a large epsilon the size is the one that reproduces codewords best from the others."""
        book = PublicCodebook(rng.standard_normal((40, 8)) + np.repeat(2 * np.eye(8), 5, axis=0))
        reached = []
        for size in range(1, 21):
            codes = book.encode(book.vectors.astype(float), size, without=np.arange(40))
            assert not (codes == np.arange(40)[:, None]).any()
            sums = unit(book._directions[codes].sum(axis=1))
            reached.append(float((sums * book._directions).sum(axis=1).mean()))
        assert book.choose_size(200.0) == int(np.argmax(reached)) + 1 < 20


class TestLaw:
    def test_codes_follow_the_law(self) -> None:
        """Chi-square over all ten sets of two of five codewords, false alarm 1e-8; 3 % more epsilon is noticed."""
        book = PublicCodebook(np.eye(5), code_size=2)
        draws, epsilon = 150_000, 1.5
        record = np.array([0.9, 0.1, 0.8, 0.0, -0.1])
        true = tuple(sorted(book.encode(unit(record)[None], 2)[0].tolist()))
        assert true == (0, 2)
        index = ss.release_index(np.tile(record, (draws, 1)), epsilon=epsilon, codebook=book, rng=4)
        seen = Counter(map(tuple, index.codes.tolist()))
        sets = list(itertools.combinations(range(5), 2))
        assert set(seen) == set(sets)
        counts = np.array([seen[one] for one in sets])
        for claimed, is_right in ((epsilon, True), (epsilon + 0.05, False)):
            weights = np.where([one == true for one in sets], math.exp(claimed), 1.0)
            expected = weights / weights.sum() * draws
            assert (float(((counts - expected) ** 2 / expected).sum()) < chi2.isf(1e-8, 9)) == is_right

    def test_guarantee_is_that_of_the_response(self, book: PublicCodebook, domain: Array) -> None:
        index = ss.release_index(domain[300:], epsilon=9.0, codebook=book)
        response = SetResponse(9.0, names=300, size=1)
        promise = index.guarantee
        assert (promise.epsilon, promise.delta, promise.mechanism, promise.regime) == (9.0, 0.0, "codebook", "index")
        assert promise.profile == response.profile
        assert promise.details["true_code_probability"] == response.truth
        assert (promise.details["codewords"], promise.details["code_size"]) == (300, 1)
        assert promise.sampler == "exact"
        assert Guarantee.from_dict(promise.to_dict()) == promise
        text = " ".join(str(promise).split())
        assert "600 codes of 1 public codewords each" in text
        assert "Source of the codebook: Half of the test rows. SHA-256 of the codebook:" in text
        assert "What is taken as public: the codebook," in text
        assert "chosen without the records, which the caller states" in text

    def test_identities_share_the_budget(self, book: PublicCodebook, domain: Array) -> None:
        labels = np.arange(600) // 3
        index = ss.release_index(domain[300:], epsilon=9.0, codebook=book, adjacency=ss.Identity(labels), rng=1)
        assert index.guarantee.details["epsilon_per_record"] * 3 <= 9.0
        assert index.guarantee.details["epsilon_per_record"] == pytest.approx(3.0)
        people = ss.Identity(labels, centroids=True)
        assert ss.release_index(domain[300:], epsilon=9.0, codebook=book, adjacency=people, rng=1).codes.shape[0] == 200

    def test_alphabets_beyond_64_bits(self, domain: Array) -> None:
        big = PublicCodebook(domain[:300], code_size=20)
        index = ss.release_index(domain[300:], epsilon=80.0, codebook=big, rng=1)
        assert math.comb(300, 20) > 2**64
        assert np.mean(np.sort(big.encode(unit(domain[300:]), 20), axis=1) == index.codes) > 0.99
        huge = PublicCodebook(np.random.default_rng(1).standard_normal((1500, 3)), code_size=256)
        with pytest.raises(ss.InvalidInput, match="ask for smaller sets"):
            ss.release_index(domain[:, :3], epsilon=80.0, codebook=huge)

    def test_a_ledger_is_charged_once(self, book: PublicCodebook, domain: Array, tmp_path: Path) -> None:
        ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=10, delta=1e-6)
        index = ss.release_index(domain[300:], epsilon=8.0, codebook=book, ledger=ledger.account("documents"))
        assert 0 < ledger.spent <= 8.0
        assert index.guarantee.sampler == "exact"
        with pytest.raises(ss.BudgetExceeded):
            ss.release_index(domain[300:], epsilon=8.0, codebook=book, ledger=ledger.account("documents"))


class TestAnswers:
    def test_scores_are_cosines_with_the_sum(self, book: PublicCodebook, domain: Array) -> None:
        index = ss.release_index(domain[300:], epsilon=13.0, codebook=book, rng=2)
        queries = domain[:7] + 0.1
        wanted = unit(queries) @ unit(unit(domain[:300])[index.codes.astype(int)].sum(axis=1)).T
        assert index.codes.shape == (600, 2)
        assert index.scores(queries) == pytest.approx(wanted, abs=1e-5)
        assert index.scores(queries[3]) == pytest.approx(wanted[3], abs=1e-5)
        assert np.abs(np.linalg.norm(index.vectors, axis=1) - 1).max() < 1e-5
        assert index.gram()[3, 5] == pytest.approx(float(index.vectors[3] @ index.vectors[5]), abs=1e-6)
        assert np.all(index.gram().diagonal() == 1)

    def test_searches_agree_with_scores(
        self, book: PublicCodebook, domain: Array, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        index = ss.release_index(domain[300:], epsilon=13.0, codebook=book, rng=2)
        queries = domain[:5]
        found = index.search(queries, 8)
        scores = index.scores(queries)
        assert np.take_along_axis(scores, found.indices, 1) == pytest.approx(found.scores, abs=1e-6)
        assert found.scores == pytest.approx(-np.sort(-scores, axis=1)[:, :8], abs=1e-6)
        monkeypatch.setattr("scoreshield.releases.index.SEARCH_ROWS", 64)
        assert index.search(queries, 8).scores == pytest.approx(found.scores, abs=1e-6)
        assert index.search(queries[0], 5000).indices.shape == (600,)

    def test_it_answers_better_than_privunit(self, book: PublicCodebook, domain: Array) -> None:
        """Of one domain; the difference is many standard errors."""
        queries, rows = domain[:100], domain[300:]
        clean = np.argsort(-(unit(queries) @ unit(rows).T), axis=1)[:, :10]

        def agreement(index: Any) -> float:
            found = index.search(queries, 10).indices
            return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, clean, strict=True)]))

        coded = agreement(ss.release_index(rows, epsilon=9.0, codebook=book, rng=1))
        assert coded > 1.15 * agreement(ss.release_index(rows, epsilon=9.0, rng=1))

    def test_blocks_give_the_same(self, book: PublicCodebook, domain: Array, monkeypatch: pytest.MonkeyPatch) -> None:
        """The true codes do not depend on the size of the blocks, and progress counts all rows."""
        whole = book.encode(unit(domain[300:]), 2)
        seen: list[tuple[int, int]] = []
        monkeypatch.setattr(module, "_BLOCK_BYTES", 300 * 8 * 50)
        assert np.array_equal(book.encode(unit(domain[300:]), 2), whole)
        index = ss.release_index(
            domain[300:], epsilon=60.0, codebook=PublicCodebook(domain[:300], code_size=2), rng=1,
            progress=lambda done, total: seen.append((done, total)),
        )  # fmt: skip
        assert np.array_equal(index.codes, np.sort(whole, axis=1))  # at epsilon 60 every code is the true one
        assert seen == [(done, 600) for done in range(50, 601, 50)]


class TestTrial:
    def test_in_domain_it_is_useful(self, book: PublicCodebook, domain: Array) -> None:
        trial = book.try_on(domain[600:700], domain[300:600], epsilon=9.0)
        assert trial.is_useful
        assert "serves this domain" in str(trial)
        assert "codes of 1 codeword keep" in str(trial)
        assert trial.chance == 10 / 300
        assert 0 < trial.error < 0.05

    def test_better_than_privunit_and_mostly_noise(self) -> None:
        """A codebook that keeps a tenth of the clean answers is not approved, although PrivUnit keeps less."""
        facts = {"epsilon": 20.0, "k": 4, "records": 2_000, "queries": 100, "code_size": 2}
        shares = {"error": 0.005, "without_codebook": 0.043, "chance": 0.002, "has_public_records": True}
        weak, good = (CodebookTrial(**facts, recall=recall, **shares) for recall in (0.092, 0.5))
        assert weak.is_useful is False
        assert "serves this domain" not in weak.verdict
        assert "only 0.09 of the clean answers" in weak.verdict
        assert good.is_useful
        assert good.verdict == "The codebook serves this domain."

    def test_without_public_records_there_is_no_verdict(self, book: PublicCodebook, domain: Array) -> None:
        """A codebook of another domain keeps much of its own records, so its trial on them decides nothing."""
        trial = book.try_on(domain[600:700], epsilon=9.0)
        assert trial.recall - 3 * trial.error > max(trial.without_codebook, 2 * trial.chance)
        assert trial.is_useful is None
        assert "your records were not tried" in str(trial)
        assert "serves this domain" not in str(trial)
        assert "USELESS" not in str(trial)

    def test_the_prediction_holds(self, book: PublicCodebook, domain: Array) -> None:
        """What is measured on private records of the same domain is near to what public ones predicted."""
        queries, rows = domain[600:750], domain[300:600]
        trial = book.try_on(queries, epsilon=9.0)
        clean = np.argsort(-(unit(queries) @ unit(rows).T), axis=1)[:, :10]
        found = ss.release_index(rows, epsilon=9.0, codebook=book, rng=5).search(queries, 10).indices
        kept = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, clean, strict=True)])
        assert trial.recall == pytest.approx(kept, abs=0.1)

    def test_out_of_domain_it_says_so(self, domain: Array, rng: np.random.Generator) -> None:
        """Codewords in a subspace that the records hardly use."""
        other = np.zeros((300, 24))
        other[:, :4] = rng.standard_normal((300, 4))
        foreign = PublicCodebook(other)
        rows = domain[300:600].copy()
        rows[:, :4] *= 0.05
        trial = foreign.try_on(rows[:60], rows, epsilon=9.0)
        assert not trial.is_useful
        assert "USELESS" in str(trial)

    def test_a_trial_repeats(self, book: PublicCodebook, domain: Array) -> None:
        first, second = (book.try_on(domain[600:620], epsilon=9.0, seed=3, repeats=1) for _ in range(2))
        assert first == second

    def test_bad_trials(self, book: PublicCodebook, domain: Array) -> None:
        for arguments, words in (
            ({"epsilon": 0.0}, "epsilon"),
            ({"epsilon": 1.0, "k": 0}, "'k'"),
            ({"epsilon": 1.0, "k": 30, "public_records": domain[:30]}, "below the number of public records, 30"),
            ({"epsilon": 1.0, "public_records": domain[:, :5]}, "of 24 dimensions"),
            ({"epsilon": 1.0, "repeats": 0}, "repeats"),
        ):
            with pytest.raises(ss.InvalidInput, match=words):
                book.try_on(domain[:5], **arguments)
        with pytest.raises(ss.InvalidInput, match="query"):
            book.try_on(domain[:5, :3], epsilon=1.0)


class TestFiles:
    def test_a_release_is_saved_and_loaded_equal(self, book: PublicCodebook, domain: Array, tmp_path: Path) -> None:
        index = ss.release_index(domain[300:], epsilon=13.0, codebook=book, rng=2)
        index.search(domain[0], 3)  # what is kept for speed is not saved
        index.save(tmp_path / "i.npz")
        back = ss.load(tmp_path / "i.npz")
        assert isinstance(back, CodebookRelease)
        assert back == index
        assert back.codebook.fingerprint == book.fingerprint
        assert back.codebook.source == book.source
        assert np.array_equal(back.scores(domain[:3]), index.scores(domain[:3]))
        assert index.codes.dtype == np.uint16
        assert not index.codes.flags.writeable

    def test_an_edited_file_is_rejected(self, book: PublicCodebook, domain: Array, tmp_path: Path) -> None:
        index = ss.release_index(domain[300:], epsilon=13.0, codebook=book, rng=2)
        index.save(tmp_path / "i.npz")
        with np.load(tmp_path / "i.npz") as file:
            parts = {name: file[name] for name in file.files}
        for name, value in (
            ("codes", parts["codes"][:, ::-1]),
            ("codes", parts["codes"].astype(np.int64)),
            ("codes", parts["codes"] + np.uint16(250)),
            ("codewords", parts["codewords"][::-1]),
            ("codewords", parts["codewords"][1:]),
            ("center", parts["center"] * 0.5),
        ):
            np.savez(tmp_path / "e.npz", **{**parts, name: value})
            with pytest.raises(ss.InvalidInput, match="does not hold together"):
                ss.load(tmp_path / "e.npz")

    def test_a_codebook_is_saved_and_loaded_equal(self, domain: Array, tmp_path: Path) -> None:
        book = PublicCodebook(domain[:50], source="Past queries.", center=np.full(24, 0.01), code_size=3)
        book.save(tmp_path / "b.npz")
        back = PublicCodebook.load(tmp_path / "b.npz")
        assert back == book
        assert (back.source, back.code_size, back.fingerprint) == ("Past queries.", 3, book.fingerprint)
        assert np.array_equal(back.vectors, book.vectors)
        with pytest.raises(ss.InvalidInput, match=r"PublicCodebook\.load"):
            ss.load(tmp_path / "b.npz")
        ss.release_index(domain, epsilon=2.0, rng=1).save(tmp_path / "i.npz")
        with pytest.raises(ss.InvalidInput, match="no public codebook"):
            PublicCodebook.load(tmp_path / "i.npz")

    def test_the_fingerprint_sees_every_change(self, domain: Array) -> None:
        book = PublicCodebook(domain[:50])
        moved = domain[:50].copy()
        moved[3, 5] += 1e-3
        others = [PublicCodebook(moved), PublicCodebook(domain[:49]), PublicCodebook(domain[:50], center=np.zeros(24))]
        others += [PublicCodebook(domain[:50][::-1])]
        assert len({one.fingerprint for one in (book, *others)}) == 5
        assert PublicCodebook(3 * domain[:50]).vectors == pytest.approx(book.vectors, abs=1e-6)


NAN = np.array([[1.0, 0.0], [math.nan, 1.0]])


@pytest.mark.parametrize(
    ("vectors", "options", "words"),
    [
        (np.eye(3)[0], {}, "two-dimensional"),
        (np.eye(3)[:1], {}, "at least two vectors"),
        (NAN, {}, "Row 1|row 1"),
        ([[1.0, 0.0], [0.0, 0.0]], {}, "is zero and has no direction"),
        ([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], {}, "1 vectors of the codebook have the direction of another one"),
        (np.eye(3), {"center": [1.0, 0.0]}, "center"),
        (np.eye(3), {"center": [1.0, 0.0, 0.0]}, "of length below 1"),
        (np.eye(3), {"center": "mean"}, "None or a public vector"),
        (np.eye(3), {"center": [math.nan, 0.0, 0.0]}, "center"),
        (np.eye(3), {"code_size": 3}, "below the number of vectors, 3"),
        (np.eye(3), {"code_size": 0}, "code_size"),
        (np.eye(300), {"code_size": 257}, "at most 256"),
        (np.eye(3), {"code_size": True}, "code_size"),
        (np.eye(3), {"source": ""}, "one line of text"),
        (np.eye(3), {"source": "two\nlines"}, "one line of text"),
        (np.eye(3), {"source": 7}, "one line of text"),
        ("words", {}, "two-dimensional"),
    ],
)
def test_bad_codebooks(vectors: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ss.InvalidInput, match=words):
        PublicCodebook(vectors, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"codebook": PublicCodebook(np.eye(5))}, "must be of 24 dimensions, as the embeddings are"),
        ({"codebook": np.eye(24)}, "a PublicCodebook"),
        (
            {"mechanism": "gaussian", "delta": 1e-6},
            "leave 'mechanism', 'use', 'components'",
        ),
        ({"components": 3}, "leave 'mechanism'"),
        ({"reduction": np.eye(3, 24)}, "leave 'mechanism'"),
        ({"center": np.zeros(24)}, "leave 'mechanism'"),
        ({"delta": 1e-6}, "delta"),
        ({"adjacency": ss.GramRadius(1.0)}, "Gram radius"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_bad_releases_charge_nothing(
    options: dict[str, Any], words: str, book: PublicCodebook, domain: Array, tmp_path: Path
) -> None:
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=100, delta=1e-5)
    given = {"epsilon": 5.0, "codebook": book, **options}
    with pytest.raises(ss.InvalidInput, match=words):
        ss.release_index(domain, ledger=ledger.account("documents"), **given)
    assert ledger.spent == 0


def test_a_bad_row_charges_nothing(book: PublicCodebook, domain: Array, tmp_path: Path) -> None:
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=100, delta=1e-5)
    rows = domain.copy()
    rows[17, 2] = math.inf
    with pytest.raises(ss.InvalidInput, match="17"):
        ss.release_index(rows, epsilon=5.0, codebook=book, ledger=ledger.account("documents"))
    assert ledger.spent == 0


def test_tasks_read_it(book: PublicCodebook, domain: Array) -> None:
    """Rankings and pairwise similarities, as from any index."""
    index = ss.release_index(domain[300:340], epsilon=13.0, codebook=book, rng=2)
    ranked = ss.tasks.rank_records(index, 5, query=domain[0])
    assert ranked.tolist() == index.search(domain[0], 5).indices.tolist()
    from scoreshield.tasks._reading import read_similarities

    assert np.array_equal(read_similarities(index, "feasible"), index.gram())


def test_errors_name_the_codebook(book: PublicCodebook, domain: Array, tmp_path: Path) -> None:
    with pytest.raises(ss.InvalidInput, match="for an index over a codebook"):
        ss.release_index(domain, epsilon=5.0, delta=1e-6, codebook=book)
    book.save(tmp_path / "book.npz")
    with pytest.raises(ss.InvalidInput, match=r"read it with PublicCodebook\.load"):
        ss.load(tmp_path / "book.npz")


@pytest.mark.parametrize("epsilon", [0.0005, 501.0])
def test_the_limits_of_privunit_are_not_those_of_a_codebook(epsilon: float) -> None:
    rows = np.random.default_rng(3).normal(size=(30, 8))
    book = ss.PublicCodebook(np.random.default_rng(4).normal(size=(20, 8)))
    index = ss.release_index(rows, epsilon=epsilon, codebook=book)
    assert index.guarantee.epsilon == epsilon
    assert index.is_intact()
    with pytest.raises(ss.InvalidInput, match="'epsilon' parameter of release_index must be such that PrivUnit"):
        ss.release_index(rows, epsilon=epsilon)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delta": 1e-6}, "'delta' parameter of release_index must be 0 .left out. for an index over a codebook"),
        ({"center": "private"}, "A codebook replaces the mechanism"),
        ({"center": "private", "delta": 1e-6}, "A codebook replaces the mechanism"),
        ({"center": np.zeros(8)}, "A codebook replaces the mechanism"),
        ({"center": [0.0] * 8}, "A codebook replaces the mechanism"),
        ({"center_share": 0.1}, "A codebook replaces the mechanism"),
        ({"mechanism": "gaussian", "delta": 1e-6}, "A codebook replaces the mechanism"),
        ({"components": 4}, "A codebook replaces the mechanism"),
        ({"adjacency": ss.GramRadius(0.5)}, "a Gram radius says nothing about vectors"),
    ],
)
def test_errors_speak_of_the_codebook(options: dict[str, Any], words: str) -> None:
    rows = np.random.default_rng(3).normal(size=(30, 8))
    book = ss.PublicCodebook(np.random.default_rng(4).normal(size=(20, 8)))
    with pytest.raises(ss.InvalidInput, match=words):
        ss.release_index(rows, epsilon=5.0, codebook=book, **options)
