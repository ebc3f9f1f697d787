"""What a search is worth: stated before a charge, from public facts alone. The choice of a mode, and scores of hits."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.decisions.queries import QueryScores
from scoreshield.errors import InvalidInput, UselessRelease
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.ledger.accounts import Account
from scoreshield.releases.advice import _EPSILONS
from scoreshield.search import Hits, PrivateSearch

RNG = np.random.default_rng(17)
N, DIMENSION = 1_500, 384
ROWS = RNG.standard_normal((N, DIMENSION)).astype(np.float32)
QUERIES = (ROWS[:12] + 0.8 * RNG.standard_normal((12, DIMENSION))).astype(np.float32)


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=200.0, delta=1e-6).account("people")


def make_options(mode: str, account: Account | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {"mode": mode}
    if mode == "screening":
        options["threshold"] = 0.4
    if mode == "batch":
        options["queries"] = QUERIES
    return options | ({} if account is None else {"ledger": account})


MODES = ("index", "query", "screening", "hits", "batch")


WORDS = ROWS[:700] + 0.05 * np.random.default_rng(3).standard_normal((700, DIMENSION))
#: Searches that rank by noise: an epsilon and the other arguments.
USELESS: dict[str, tuple[float, dict[str, Any]]] = {
    "index": (3, {"mode": "index"}),
    "gaussian index": (8, {"mode": "index", "delta": 1e-6, "mechanism": "gaussian"}),
    "reduced index": (8, {"mode": "index", "components": 64}),
    "index of identities": (8, {"mode": "index", "identity_of": lambda one: one // 2}),
    "codebook": (3, {"mode": "index", "codebook": ss.PublicCodebook(WORDS)}),
    "query": (3, {"mode": "query"}),
    "laplace": (8, {"mode": "query", "mechanism": "laplace"}),
    "gaussian": (4, {"mode": "query", "mechanism": "gaussian", "delta": 1e-6}),
    "narrow range": (3, {"mode": "query", "score_range": (0.6, 1)}),
    "identities": (8, {"mode": "query", "delta": 1e-6, "identity_of": lambda one: one // 2}),
    "screening": (3, {"mode": "screening", "threshold": 0.4}),
    "refined screening": (3, {"mode": "screening", "threshold": 0.4, "refine": 0.5}),
    "hits": (6, {"mode": "hits"}),
    "four hits": (10, {"mode": "hits", "hits": 4}),
    "large batch": (4, {"mode": "batch", "queries": np.vstack([QUERIES] * 17)}),
}


#: Releases that rank by noise, and what the warning calls them.
RANKED: dict[str, tuple[Callable[..., Any], str]] = {
    "ranking": (partial(ss.release_scores, ROWS, QUERIES[0], epsilon=1, for_="ranking"), "a release of scores"),
    "anchored": (partial(ss.release_scores, ROWS, QUERIES[0], epsilon=2, mechanism="anchored"), "a release of scores"),
    "k": (partial(ss.release_scores, ROWS, QUERIES[0], epsilon=8, delta=1e-6, k=10), "a release of scores"),
    "top-k": (partial(ss.release_top_k, ROWS, QUERIES[0], 10, epsilon=8), "a release of the best records"),
    "one best": (partial(ss.release_top_k, ROWS, QUERIES[0], 1, epsilon=1), "a release of the best records"),
    "matches": (partial(ss.release_matches, ROWS, QUERIES[0], 0.4, epsilon=1), "a screening"),
}


def catch_useless(make: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return [str(one.message) for one in caught if issubclass(one.category, UselessRelease)]


def find_suggested(text: str) -> float | None:
    """Find the epsilon that a warning suggests."""
    found = re.search(r"epsilon (\d+) is predicted to find half of what", text)
    return None if found is None else float(found[1])


class TestWarning:
    @pytest.mark.parametrize("mode", MODES)
    def test_before_charge(self, mode: str, account: Account) -> None:
        """A search that would rank by noise says so before anything is charged, and names a change that helps."""
        with pytest.warns(
            UselessRelease, match=r"ranks mostly by noise.*; (.* )?epsilon \d+ is predicted to find half"
        ) as caught:
            PrivateSearch(ROWS, epsilon=0.5, **make_options(mode, account))
        assert len(caught) == 1
        assert __file__ in caught[0].filename  # it points at the caller's line
        spent = account.spent
        with warnings.catch_warnings():
            warnings.simplefilter("error", UselessRelease)
            with pytest.raises(UselessRelease):
                PrivateSearch(ROWS, epsilon=0.5, **make_options(mode, account))
        assert account.spent == spent

    @pytest.mark.parametrize("name", USELESS)
    def test_suggested_epsilon(self, name: str, tmp_path: Path) -> None:
        """With the suggested epsilon and the same arguments there is no warning; with the one before it there is."""
        account = Ledger.create(f"sqlite:///{tmp_path / 'large.db'}", epsilon=2_000.0, delta=1e-4).account("people")
        epsilon, options = USELESS[name]
        (text,) = catch_useless(lambda: PrivateSearch(ROWS, epsilon=epsilon, ledger=account, **options))
        larger = find_suggested(text)
        if larger is None:
            assert name == "identities"
            assert "no epsilon up to 200 is predicted to help" in text
            assert catch_useless(lambda: PrivateSearch(ROWS, epsilon=200, ledger=account, **options))
            return
        assert not catch_useless(lambda: PrivateSearch(ROWS, epsilon=larger, ledger=account, **options))
        smaller = max(one for one in (epsilon, *_EPSILONS) if one < larger)
        (near,) = catch_useless(lambda: PrivateSearch(ROWS, epsilon=smaller, ledger=account, **options))
        assert find_suggested(near) == larger

    @pytest.mark.parametrize("name", ["gaussian index", "laplace", "hits", "refined screening"])
    def test_suggested_mode(self, name: str, account: Account) -> None:
        """A release per query is suggested with the recall that it is then predicted to have."""
        epsilon, options = USELESS[name]
        (text,) = catch_useless(lambda: PrivateSearch(ROWS, epsilon=max(epsilon, 6), ledger=account, **options))
        assert ("mechanism='auto'" in text) == ("mechanism" in options)
        search = PrivateSearch(ROWS, epsilon=max(epsilon, 6), mode="query", ledger=account)
        assert f"predicted to find {search.worth.recall:.2f} at " in text
        assert search.worth.is_useful

    def test_identities(self, account: Account) -> None:
        """Records that share epsilon have no release per query without a delta, and none is suggested."""
        epsilon, options = USELESS["index of identities"]
        (text,) = catch_useless(lambda: PrivateSearch(ROWS, epsilon=epsilon, ledger=account, **options))
        assert "mode='query'" not in text
        assert "batch" not in text

    def test_first_line_of_the_readme(self) -> None:
        with pytest.warns(UselessRelease, match=r"At epsilon 8 an index ranks mostly by noise.*mode='query'"):
            hits = PrivateSearch(ROWS, epsilon=8).search(QUERIES[0], k=4)
        assert hits.worth is not None
        assert not hits.worth.is_useful

    def test_suggestions_help(self, account: Account) -> None:
        """What the warning suggests is predicted to be useful, and gives no warning itself."""
        with pytest.warns(UselessRelease) as caught:
            PrivateSearch(ROWS, epsilon=3, ledger=account)
        text = str(caught[0].message)
        larger = float(text.split("epsilon ")[-1].split(" ")[0])
        with warnings.catch_warnings():
            warnings.simplefilter("error", UselessRelease)
            search = PrivateSearch(ROWS, epsilon=larger)
            assert search.worth is not None
            assert search.worth.is_useful

    def test_k_of_a_query(self, account: Account) -> None:
        """A query with another k than stated is predicted before its charge."""
        search = PrivateSearch(ROWS, epsilon=5, mode="query", k=100, ledger=account)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UselessRelease)
            with pytest.raises(UselessRelease, match="the best 1 of"):
                search.search(QUERIES[0], 1)
        assert account.spent == 0

    @pytest.mark.parametrize("mode", MODES)
    def test_hits_of_another_k(self, mode: str) -> None:
        """Hits state the worth for the number of hits that was asked for; more than stated are as stated."""
        search = PrivateSearch(ROWS, epsilon=12, rng=1, **make_options(mode))
        for k, stated in ((4, 4), (10, 10), (25, 10), (4, 4)):
            worth = search.search(QUERIES[0], k).worth
            assert worth.k == stated
            assert f"among the best {stated} of 1,500" in worth.sentence
            assert (worth == search.worth) == (stated == 10)
        assert search.search(QUERIES[0], 4).worth.recall < search.worth.recall

    def test_required_recall_is_of_the_stated_k(self, account: Account) -> None:
        """A query that asks for fewer hits than stated is not rejected for the recall of its own number."""
        free = PrivateSearch(ROWS, epsilon=12, mode="query", rng=1)
        least = (free.worth.recall + free.search(QUERIES[0], 1).worth.recall) / 2
        search = PrivateSearch(ROWS, epsilon=12, mode="query", require_recall=least, ledger=account)
        assert search.search(QUERIES[0], 1).worth.recall < least

    @pytest.mark.parametrize("mode", ["index", "query"])
    def test_toy_collections(self, mode: str, account: Account) -> None:
        """Where all records are returned, there is nothing to warn of."""
        options = make_options(mode, account)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UselessRelease)
            search = PrivateSearch(ROWS[:10], epsilon=0.5, **options)
            search.search(QUERIES[0])
        assert search.worth is not None
        assert (search.worth.recall, search.worth.error) == (1, 0)
        assert "among all 10," in search.worth.sentence

    @pytest.mark.parametrize("mode", ["screening", "hits", "batch"])
    def test_toy_collections_with_names(self, mode: str) -> None:
        """A release that names some records may leave out the relevant one, however large k is."""
        options = make_options(mode)
        names = [PrivateSearch(ROWS[:10], epsilon=1, rng=seed, **options).search(QUERIES[0]).ids for seed in range(20)]
        assert 0 < sum(0 in one for one in names) < 20
        worth = PrivateSearch(ROWS[:10], epsilon=1, rng=1, **options).worth
        assert worth is not None
        assert 0.1 < worth.recall < 0.9
        assert worth.error > 0.1

    @pytest.mark.parametrize(("dimension", "is_known"), [(64, False), (384, True)])
    def test_other_models(self, dimension: int, is_known: bool) -> None:
        """The warning says where it is a prediction for another model, and the epsilon that it suggests is useful."""
        rows = np.random.default_rng(2).standard_normal((1_460, dimension))
        with pytest.warns(UselessRelease) as caught:
            worth = PrivateSearch(rows, epsilon=8).worth
        (text,) = (str(one.message) for one in caught)
        assert ("probably ranks" in text) == (not is_known)
        assert ("this model is unknown, and public_scores of it" in text) == (not is_known)
        assert worth is not None
        assert worth.sentence.startswith("Predicted" if is_known else "Unknown for this model")
        (epsilon,) = re.findall(r"or epsilon (\d+) is predicted to find half", text)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UselessRelease)
            other = PrivateSearch(rows, epsilon=float(epsilon)).worth
        assert other is not None
        assert other.recall >= 0.5 * other.clean

    def test_small_ledger(self, tmp_path: Path) -> None:
        """mode="auto" does not pick a release per query that the ledger does not cover once."""
        ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=5, delta=1e-6)
        with pytest.raises(ss.BudgetExceeded):
            PrivateSearch(ROWS, epsilon=8, mode="auto", ledger=ledger.account("docs"))
        with pytest.warns(UselessRelease):
            search = PrivateSearch(ROWS, epsilon=4, mode="auto", ledger=ledger.account("docs"))
        assert search.choice is not None

    def test_automatic_mode(self, tmp_path: Path) -> None:
        """Where mode="auto" ruled a release per query out, the warning does not suggest one."""
        ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=50, delta=1e-6)
        with pytest.warns(UselessRelease, match="a batch of 30 queries") as caught:
            search = PrivateSearch(ROWS, epsilon=8, mode="auto", queries=300, ledger=ledger.account("docs"))
        assert search.choice is not None
        assert "a release per query is ruled out" in search.choice.sentence
        assert not any("per query" in str(one.message) for one in caught)

    def test_research_and_files(self, tmp_path: Path) -> None:
        """Research mode costs nothing, and neither does an index from a file."""
        with pytest.warns(UselessRelease):
            PrivateSearch(ROWS, epsilon=8, file=tmp_path / "index.npz")
        with warnings.catch_warnings():
            warnings.simplefilter("error", UselessRelease)
            loaded = PrivateSearch(ROWS, epsilon=8, file=tmp_path / "index.npz")
            assert not PrivateSearch(ROWS, epsilon=8, rng=1).worth.is_useful
        assert loaded.worth == PrivateSearch.load(tmp_path / "index.npz").worth

    @pytest.mark.parametrize("mode", MODES)
    def test_require_recall(self, mode: str, account: Account) -> None:
        with pytest.raises(InvalidInput, match=r"A recall of 0.9 is required, and .* nothing was released or charged"):
            PrivateSearch(ROWS, epsilon=2, require_recall=0.9, **make_options(mode, account))
        assert account.spent == 0
        assert PrivateSearch(ROWS, epsilon=200, require_recall=0.1, rng=1, **make_options(mode)).worth.recall > 0.1

    @pytest.mark.parametrize("name", RANKED)
    def test_ranked_releases(self, name: str, account: Account) -> None:
        """Releases of one query that are ranked warn before the charge, and what they suggest helps."""
        release, called = RANKED[name]
        with warnings.catch_warnings():
            warnings.simplefilter("error", UselessRelease)
            with pytest.raises(UselessRelease, match=f"{called} ranks mostly by noise") as caught:
                release(ledger=account)
            assert account.spent == 0
            release(rng=1)  # research costs nothing
            larger = find_suggested(str(caught.value))
            if larger is not None:
                release(epsilon=larger)
            else:
                assert "release_scores with for_='ranking' is predicted to find" in str(caught.value)

    def test_values_are_not_ranked(self) -> None:
        """Scores whose values are used, and those of a threshold, give no warning."""
        for options in ({"delta": 1e-6}, {"for_": "threshold", "threshold": 0.4}, {"mechanism": "staircase"}):
            assert not catch_useless(lambda options=options: ss.release_scores(ROWS, QUERIES[0], epsilon=1, **options))

    def test_releases(self, account: Account) -> None:
        """The release functions warn and stop too."""
        with pytest.warns(UselessRelease, match="an index ranks mostly by noise"):
            ss.release_index(ROWS, epsilon=5)
        with pytest.warns(UselessRelease, match="a batch ranks mostly by noise"):
            ss.release_batch(ROWS, QUERIES, epsilon=2, k=5)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UselessRelease)
            ss.release_index(ROWS, epsilon=5, use="pairs")
        for make in (
            lambda: ss.release_index(ROWS, epsilon=5, require_recall=0.5, ledger=account),
            lambda: ss.release_batch(ROWS, QUERIES, epsilon=2, k=5, require_recall=0.5, ledger=account),
            lambda: ss.release_scores(
                ROWS, QUERIES[0], epsilon=8, mechanism="staircase", require_recall=0.5, ledger=account
            ),
            lambda: ss.release_matches(ROWS, QUERIES[0], 0.4, epsilon=1, require_recall=0.5, ledger=account),
            lambda: ss.release_top_k(ROWS, QUERIES[0], 5, epsilon=8, require_recall=0.5, ledger=account),
        ):
            with pytest.raises(InvalidInput, match=r"A recall of 0\.5 is required"):
                make()
        assert account.spent == 0


class TestPublicFacts:
    @pytest.mark.parametrize("mode", [*MODES, "auto"])
    def test_other_records(self, mode: str) -> None:
        """Other records of the same shape have the same worth, warning and choice, in every word."""
        others = np.random.default_rng(5).standard_normal(ROWS.shape).astype(np.float32)
        others[:1_000] = QUERIES[0]  # near the first query, as the records are not
        found = []
        for rows in (ROWS, others):
            options = make_options(mode) | ({"rng": 1} if mode in ("query", "screening", "auto") else {})
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                search = PrivateSearch(rows, epsilon=4, **options)
            texts = [str(one.message) for one in caught if issubclass(one.category, UselessRelease)]
            found.append((search.worth, texts, search.mode, None if search.choice is None else search.choice.sentence))
        assert found[0] == found[1]

    def test_other_numbers(self) -> None:
        """The near miss: another number of records is a public fact, and changes the worth."""
        few, many = (PrivateSearch(ROWS[:count], epsilon=30, rng=1).worth for count in (300, N))
        assert few.recall > many.recall


class TestAuto:
    def test_what_the_caller_has(self, account: Account) -> None:
        """Without a ledger there is an index; with one, single queries; with known queries, a batch."""
        alone = PrivateSearch(ROWS, epsilon=8, mode="auto", max_epsilon=8)
        assert (alone.mode, account.spent) == ("index", 0)
        per_query = PrivateSearch(ROWS, epsilon=8, mode="auto", ledger=account)
        assert (per_query.mode, account.spent) == ("query", 0)
        known = PrivateSearch(ROWS, epsilon=8, mode="auto", ledger=account, queries=QUERIES)
        assert known.mode == "batch"
        assert account.spent == pytest.approx(8)
        for search in (alone, per_query, known):
            assert search.choice is not None
            assert search.choice.sentence not in repr(search), "a repr is short"
            assert search.choice.worth == search.worth
            assert str(search.choice) == search.choice.sentence
        assert "each query costs epsilon 8" in str(per_query.choice)

    def test_a_missing_ledger_is_suggested(self) -> None:
        """Where only a ledger is missing for single queries, the warning names them as that of an index does."""
        with pytest.warns(UselessRelease, match=r"or mode='query' with a ledger\) is predicted to find"):
            search = PrivateSearch(ROWS, epsilon=8, mode="auto")
        assert repr(search) == "<PrivateSearch of the array: mode 'index', version 1, total epsilon 8>"

    def test_price(self, account: Account) -> None:
        """An index that is nearly as good is cheaper, and a ledger that does not cover the queries rules them out."""
        assert PrivateSearch(ROWS, epsilon=190, mode="auto", ledger=account).mode == "index"
        with pytest.warns(UselessRelease):
            assert PrivateSearch(ROWS, epsilon=8, mode="auto", ledger=account, queries=1_000).mode == "index"

    def test_composed_price(self, tmp_path: Path) -> None:
        """The ledger composes queries: 150 of epsilon 0.5 cost less than 60, and 10,000 do not."""
        account = Ledger.create(f"sqlite:///{tmp_path / 'other.db'}", epsilon=60.0, delta=1e-6).account("people")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UselessRelease)
            few = PrivateSearch(ROWS, epsilon=0.5, mode="auto", ledger=account, queries=150)
            many = PrivateSearch(ROWS, epsilon=0.5, mode="auto", ledger=account, queries=10_000)
        assert "a release per query" in [name for name, _ in few.choice.candidates]
        assert [name for name, _ in many.choice.candidates] == ["an index"]

    def test_codebook(self) -> None:
        """A codebook of the same kind is taken if it is predicted to be better, and no other."""
        words = ROWS[:700] + 0.05 * np.random.default_rng(3).standard_normal((700, DIMENSION))
        book = ss.PublicCodebook(words)
        search = PrivateSearch(ROWS, epsilon=12, mode="auto", codebook=book, rng=1, score_range=(-1, 1))
        assert search.choice is not None
        names = [name for name, _ in search.choice.candidates]
        assert set(names) == {"an index over the codebook", "an index", "a release per query"}
        values = [worth.recall for _, worth in search.choice.candidates]
        assert values == sorted(values, reverse=True)

    def test_range_and_threshold(self) -> None:
        """Options of one mode rule out the modes that do not take them, or add a candidate."""
        ranged = PrivateSearch(ROWS, epsilon=8, mode="auto", rng=1, score_range=(0, 0.8))
        assert [name for name, _ in ranged.choice.candidates] == ["a release per query"]
        screened = PrivateSearch(ROWS, epsilon=8, mode="auto", rng=1, threshold=0.4)
        assert "a screening per query" in [name for name, _ in screened.choice.candidates]

    def test_nothing_fits(self) -> None:
        """Where no way is left, the error says what rules out each one."""
        for options in ({"score_range": (0, 0.8)}, {"mechanism": "auto"}, {"mechanism": "laplace"}):
            says = (
                rf"an index is ruled out by '{next(iter(options))}', and .* per query is ruled out by the missing 'led"
            )
            with pytest.raises(InvalidInput, match=says):
                PrivateSearch(ROWS, epsilon=8, mode="auto", **options)
        with pytest.raises(InvalidInput, match="'queries' parameter"):
            PrivateSearch(ROWS, epsilon=8, mode="auto", queries=[1.0, 2.0])
        with pytest.raises(InvalidInput, match="'queries' is for mode='batch' and mode='auto'"):
            PrivateSearch(ROWS, epsilon=8, queries=QUERIES)
        with pytest.raises(InvalidInput, match="Mode 'batch' needs the public 'queries'"):
            PrivateSearch(ROWS, epsilon=8, mode="batch", queries=3)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"queries": np.full((5, DIMENSION), np.nan)}, "'queries'"),
            ({"queries": np.ones((5, 7))}, "'queries' parameter"),
            ({"threshold": 5.0, "queries": 50}, "'threshold' parameter"),
            ({"threshold": 0.3, "score_range": (0.5, 1.0)}, "'threshold' parameter"),
            ({"refine": 0.5}, "give its 'threshold' too"),
            ({"threshold": 0.3, "refine": 2.0}, "'refine' parameter"),
            ({"hits": 300, "queries": 50}, "'hits' parameter"),
            ({"reduction": "zzz"}, "'reduction' parameter"),
            ({"reduction": "zzz", "score_range": (0.0, 1.0)}, "'reduction' parameter"),
            ({"components": 1_000}, "'components' parameter"),
            ({"center": "zzz"}, "'center' parameter"),
            ({"center": np.ones(3)}, "'center' parameter"),
            ({"names": -3}, "'names' parameter"),
            ({"names": 3}, "'cuts' and 'names' are for"),
            ({"cuts": [0.9, 0.1]}, "'cuts' parameter"),
            ({"cuts": [0.9, 0.1], "queries": QUERIES}, "'cuts' parameter"),
            ({"names": 50, "queries": QUERIES}, "'names' parameter"),
            ({"cuts": [0.1, 0.9]}, "'cuts' and 'names' are for"),
            ({"adjacency": "junk"}, "'adjacency' parameter"),
            ({"adjacency": ss.NullRecord()}, "give its 'hits' too"),
            ({"max_epsilon": 3}, "'max_epsilon' is for an index without a ledger"),
            ({"codebook": ss.PublicCodebook(ROWS[:100, :128])}, "'codebook' parameter"),
            ({"codebook": ROWS[:100]}, "'codebook' parameter"),
            ({"mechanism": "zzz"}, "'mechanism' parameter"),
            ({"file": 3}, "'file' parameter"),
            ({"score_range": (1.0, 0.0)}, "'score_range' parameter"),
        ],
        ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
    )
    def test_bad_arguments(self, options: dict[str, Any], says: str, account: Account) -> None:
        """A bad argument is an error and costs nothing, whichever mode would have been picked."""
        with pytest.raises(InvalidInput, match=says):
            PrivateSearch(ROWS, epsilon=8, mode="auto", ledger=account, **options)
        assert account.spent == 0

    def test_what_rules_a_way_out(self, account: Account) -> None:
        """The sentence names each argument that leaves a way out, and what is missing."""

        def explain(**options: Any) -> str:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UselessRelease)
                return PrivateSearch(ROWS, epsilon=8, mode="auto", **options).choice.sentence

        assert "per query is ruled out by the missing 'ledger'" in explain()
        assert "a ledger that does not cover 1,000 queries of epsilon 8" in explain(ledger=account, queries=1_000)
        assert "a batch is ruled out by 'delta'" in explain(rng=1, queries=QUERIES, delta=1e-6)
        assert "an index is ruled out by 'mechanism'" in explain(rng=1, mechanism="laplace")
        assert "an index is ruled out by 'score_range'" in explain(rng=1, score_range=(0, 0.8))
        assert "an index is ruled out by pin='scores'" in explain(rng=1, pin="scores")
        assert "ruled out" not in explain(rng=1)
        assert "ruled out" not in explain(rng=1, queries=QUERIES, cuts=[-1.0, 0.5], names=2)

    def test_file(self, account: Account, tmp_path: Path) -> None:
        """A file does not rule out the better mode, which keeps nothing. An index that was paid for is loaded."""
        path = tmp_path / "index.npz"
        search = PrivateSearch(ROWS, epsilon=8, mode="auto", ledger=account, file=path)
        assert search.mode == "query"
        assert "'file' is not used" in str(search.choice)
        assert (account.spent, path.exists()) == (0, False)
        with pytest.warns(UselessRelease):
            PrivateSearch(ROWS, epsilon=8, ledger=account, file=path)
        spent = account.spent
        again = PrivateSearch(ROWS, epsilon=8, mode="auto", ledger=account, file=path)
        assert again.mode == "index"
        assert "per query is ruled out by 'file', which holds what was made before" in str(again.choice)
        assert account.spent == spent

    def test_required_recall(self, account: Account) -> None:
        """A cheaper mode is taken only if it finds what is required."""
        free = PrivateSearch(ROWS, epsilon=8, mode="auto", ledger=account, queries=QUERIES)
        found = {name: worth.recall for name, worth in free.choice.candidates}
        best, cheaper = found["a release per query"], found["a batch"]
        assert free.mode == "batch"
        assert cheaper < best  # so that a recall between them is required below
        least = (cheaper + best) / 2
        search = PrivateSearch(ROWS, epsilon=8, mode="auto", ledger=account, queries=QUERIES, require_recall=least)
        assert search.mode == "query"
        spent = account.spent
        with pytest.raises(InvalidInput, match=r"A recall of 0\.99 is required"):
            PrivateSearch(ROWS, epsilon=8, mode="auto", ledger=account, queries=QUERIES, require_recall=0.99)
        assert account.spent == spent

    def test_public_scores(self) -> None:
        """Public scores decide: where relevant scores are not above the others, nothing is found by any mode."""
        rng = np.random.default_rng(1)
        scores = rng.normal(0.1, 0.1, (40, 500))
        scores[:, 0] = 0.95
        pairs = np.column_stack([np.arange(40), np.zeros(40, dtype=int)])
        easy = QueryScores(scores.clip(-1, 1), pairs, origin="easy")
        search = PrivateSearch(ROWS, epsilon=20, mode="auto", rng=1, public_scores=easy)
        assert search.mode == "index"  # which suffices where relevant records are so near
        assert PrivateSearch(ROWS, epsilon=20, mode="auto", rng=1).mode == "query"


class TestBatchMode:
    def test_answers(self, account: Account) -> None:
        """A batch answers its own queries, as release_batch does, for one charge."""
        search = PrivateSearch(ROWS, epsilon=12, mode="batch", queries=QUERIES, k=5, rng=3)
        batch = ss.release_batch(ROWS, QUERIES, epsilon=12, k=5, rng=np.random.default_rng(3))
        for number in range(3):
            hits = search.search(QUERIES[number], 5)
            assert hits.ids == tuple(batch.search(number, 5).indices.tolist())
            assert hits.ids[0] == number
        paid = PrivateSearch(ROWS, epsilon=12, mode="batch", queries=QUERIES, ledger=account)
        paid.search_batch(QUERIES, 3)
        assert account.spent == pytest.approx(12)
        assert paid.spent == 12
        assert paid.guarantee.regime == "batch"
        assert paid.stale is False

    def test_filters(self) -> None:
        search = PrivateSearch(ROWS, epsilon=30, mode="batch", queries=QUERIES, rng=3)
        search.hide([0])
        assert 0 not in search.search(QUERIES[0], 50).ids
        assert all(one % 2 == 0 for one in search.search(QUERIES[0], 50, where=lambda one: one % 2 == 0).ids)
        assert len(search.search(QUERIES[0], 50, threshold=2.0)) == 0

    def test_rejections(self) -> None:
        search = PrivateSearch(ROWS, epsilon=30, mode="batch", queries=QUERIES, rng=3)
        with pytest.raises(InvalidInput, match="not one of the 'queries'"):
            search.search(ROWS[100])
        with pytest.raises(InvalidInput, match="not refreshed"):
            search.refresh()
        with pytest.raises(InvalidInput, match="release_batch makes a batch that has save"):
            search.save("x.npz")
        for options, says in (
            ({"delta": 1e-6}, "'delta' parameter"),
            ({"mechanism": "privunit"}, "leave 'mechanism' out"),
            ({"hits": 2}, "'hits' and 'adjacency'"),
            ({"score_range": (0, 0.8)}, "has no score range"),
            ({"file": "x.npz"}, "'components' and 'file'"),
            ({"threshold": 0.3}, "'threshold' is for mode='screening'"),
        ):
            with pytest.raises(InvalidInput, match=says):
                PrivateSearch(ROWS, epsilon=30, mode="batch", queries=QUERIES, rng=3, **options)


class TestHits:
    def test_scores_are_readable(self) -> None:
        """At an epsilon where all released scores are above 1, the scores differ and lie in the range."""
        hits = PrivateSearch(ROWS, epsilon=6, rng=1).search(QUERIES[5], 10)
        assert hits.scores is not None
        assert hits.noisy is not None
        assert (hits.noisy > 1).all()  # clipped, each would be 1.0
        assert hits.scores.max() < 0.5
        assert len(set(hits.scores.round(6))) > 5
        assert (np.diff(hits.scores) <= 0).all()
        assert hits.noise_std == pytest.approx(PrivateSearch(ROWS, epsilon=6, rng=1)._search.index.release.score_std)

    def test_other_models(self) -> None:
        """For a model of another dimension the range alone is known, and scores are still below 1."""
        hits = PrivateSearch(ROWS[:, :100], epsilon=6, rng=1).search(QUERIES[5][:100], 10)
        assert hits.scores.max() < 1
        assert len(set(hits.scores.round(6))) > 5

    def test_little_noise(self) -> None:
        """With little noise, scores are the clean cosines."""
        hits = PrivateSearch(ROWS, epsilon=400, mode="query", mechanism="staircase", rng=1).search(QUERIES[0], 5)
        unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
        clean = unit @ QUERIES[0] / np.linalg.norm(QUERIES[0])
        np.testing.assert_allclose(hits.scores, np.sort(clean)[::-1][:5], atol=0.01)

    @pytest.mark.parametrize("reduction", ["pca", "public basis"])
    def test_unknown_error(self, reduction: str) -> None:
        """In two dimensions each of the best cosines is 1.00. The scores are not, and state no error."""
        basis = np.random.default_rng(0).standard_normal((2, ROWS.shape[1]))
        pca = {"delta": 1e-6, "components": 2, "reduction": "pca"}
        options: Any = pca if reduction == "pca" else {"reduction": basis}
        hits = PrivateSearch(ROWS, epsilon=60, rng=1, **options).search(QUERIES[5], 4)
        assert hits.noisy is not None
        assert hits.scores is not None
        assert hits.noisy.min() > 0.95
        assert hits.scores.max() < 0.5
        assert hits.noise_std is None
        lines = str(hits).splitlines()
        assert lines[0].split() == ["id", "score"]
        assert lines[1].split() == ["1", str(hits.ids[0]), f"{hits.scores[0]:.2f}"]
        assert lines[5].startswith("The error of these scores is unknown: a basis or a center changed the records")
        assert "±" not in "".join(lines[:5])

    def test_clamped(self) -> None:
        """The table says that a score range, or the threshold of a screening, cuts scores before noise."""
        options: Any = {"mode": "query", "mechanism": "staircase", "score_range": (0.2, 0.6)}
        hits = PrivateSearch(ROWS, epsilon=8, rng=1, **options).search(QUERIES[0], 3)
        assert "cosines clamped to the range from 0.2 to 0.6, before noise" in str(hits)
        options = {"mode": "screening", "threshold": 0.3, "refine": 0.5}
        hits = PrivateSearch(ROWS, epsilon=8, rng=1, **options).search(QUERIES[0], 3)
        assert "cosines clamped to the range from 0.3 to 1, before noise" in str(hits)
        assert "clamped" not in str(PrivateSearch(ROWS, epsilon=30, rng=1).search(QUERIES[0], 3))

    def test_levels(self) -> None:
        hits = PrivateSearch(ROWS, epsilon=8, mode="query", mechanism="optimal", rng=1).search(QUERIES[0], 3)
        assert hits.noise_std is None
        assert str(hits).splitlines()[0].split() == ["id", "place"]

    def test_automatic_choice_counts_what_a_basis_loses(self) -> None:
        options: Any = {"delta": 1e-6, "components": 2, "reduction": "pca"}
        search = PrivateSearch(ROWS, epsilon=30, mode="auto", rng=1, **options)
        assert search.mode == "query"

    def test_table(self) -> None:
        hits = PrivateSearch(ROWS, epsilon=30, rng=1).search(QUERIES[0], 3)
        lines = str(hits).splitlines()
        assert lines[0].split() == ["id", "score", "released"]
        assert lines[1].split()[:2] == ["1", str(hits.ids[0])]
        assert f"± {hits.noise_std:.2f}" in lines[1]
        assert lines[-1] == hits.worth.sentence
        assert str(Hits((), None, None, None, 1)) == "No hits."
        names = PrivateSearch(ROWS, epsilon=9, mode="screening", threshold=0.4, rng=1).search(QUERIES[0], 3)
        assert "score" not in str(names).splitlines()[0]

    @pytest.mark.parametrize("mode", ["query", "hits", "batch"])
    def test_places(self, mode: str) -> None:
        """Levels and windows say where a score lies: the table marks them, and shows no cosine."""
        hits = PrivateSearch(ROWS, epsilon=12, rng=1, **make_options(mode)).search(QUERIES[0], 3)
        assert len(hits) > 0
        assert hits.noise_std is None
        lines = str(hits).splitlines()
        assert lines[0].split() == ["id", "place"]
        assert lines[1].split() == ["1", str(hits.ids[0]), f"{hits.noisy[0]:.2f}"]
        assert lines[-2].startswith("A place is where a released level, window or code lies: it ranks the hit")

    def test_facts(self) -> None:
        search = PrivateSearch(ROWS, epsilon=30, rng=1)
        facts = json.loads(json.dumps(search.facts(search.search(QUERIES[0]))))
        assert facts["worth"].keys() == {"recall", "error", "clean", "k", "records", "is_useful"}
