"""Every mechanism is paid for before it draws, draws what its certificate says, and is in the registry."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import mechanism_registry
import numpy as np
import pytest
from mechanism_registry import (
    ADJACENCIES,
    BATCH,
    BOOK,
    BY_NAME,
    ENTRIES,
    LABELS,
    PUBLIC_CENTER,
    QUERY,
    ROWS,
    Call,
    Entry,
    watch_samplers,
)

import scoreshield as ss
from scoreshield.privacy import anchors, response, tails
from scoreshield.privacy.adjacency import Adjacency
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.mechanisms import MECHANISMS, REGIMES
from scoreshield.privacy.noise import gaussian as noise_module
from scoreshield.privacy.noise import laws
from scoreshield.privacy.sampling import discrete, sphere
from scoreshield.privacy.sampling.stream import ResearchStream, SecureStream
from scoreshield.releases import batch, histogram, index_plan, matches, pipeline, scores, top_k

every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


#: Whatever a release function might take as the name of a mechanism.
NAMES = sorted(
    {
        *MECHANISMS,
        *get_args(scores.ScoreMechanism),
        *top_k.SELECTIONS,
        *histogram.HISTOGRAM_MECHANISMS,
        *index_plan.MECHANISMS,
    }
)


# The registry is complete.


def test_every_mechanism_and_regime_has_an_entry() -> None:
    assert {entry.mechanism for entry in ENTRIES} == set(MECHANISMS)
    assert {entry.regime for entry in ENTRIES} == set(REGIMES)
    assert len(BY_NAME) == len(ENTRIES)


@functools.cache
def produced() -> frozenset[tuple[Any, ...]]:
    """What the release functions can be asked for, found by asking: mechanism, regime, reduction, adjacency."""
    found: set[tuple[Any, ...]] = set()
    functions: dict[str, Callable[..., Any]] = {
        name: getattr(ss, name) for name in ss.__all__ if name.startswith("release_")
    }
    arguments: dict[str, list[tuple[Any, ...]]] = {
        "release_scores": [(QUERY,), (BATCH,)],
        "release_row": [(0,)],
        "release_gram": [()],
        "release_matches": [(QUERY, 0.1)],
        "release_top_k": [(QUERY, 2)],
        "release_histogram": [(QUERY,), (None,)],
        "release_index": [()],
        "release_batch": [(BATCH,)],
    }
    assert set(functions) == set(arguments), "a release function without an entry in the registry"
    for name, function in functions.items():
        options: list[dict[str, Any]] = [{"mechanism": mechanism} for mechanism in NAMES]
        options += [{}, {"refine": 0.5}, {"mechanism": ss.randomised_response(1.0, [0.1])}]
        options += [{"mechanism": mechanism_registry.LOGISTIC}]
        reductions: list[dict[str, Any]] = [{}]
        if name == "release_index":
            reductions += [{"reduction": how, "components": 3} for how in index_plan.REDUCTIONS]
            reductions += [{"reduction": np.eye(ROWS.shape[1])[:3]}, {"codebook": BOOK}]
            reductions += [{"center": center} for center in (*index_plan.CENTERS, PUBLIC_CENTER)]
        for positional in arguments[name]:
            for option in options:
                for reduction in reductions:
                    for adjacency in (*ADJACENCIES.values(), ss.GramRadius(0.5)):
                        for delta in (0.0, 1e-6):
                            contract = {"epsilon": 6.0, "delta": delta, "adjacency": adjacency, **option, **reduction}
                            if delta == 0:
                                contract.pop("delta")
                            if name == "release_gram":
                                contract["projection"] = "none"
                            if name == "release_batch":
                                contract["k"] = 2
                            try:
                                released = function(ROWS, *positional, rng=1, **contract)
                            except (ss.InvalidInput, TypeError):
                                continue
                            found.add(kind_of(released.guarantee))
    return frozenset(found)


def kind_of(guarantee: Guarantee) -> tuple[Any, ...]:
    """What changes the noise that is drawn."""
    adjacency = guarantee.adjacency
    batch = guarantee.regime == "scores" and len(guarantee.shape) == 2
    who = (type(adjacency).__name__, getattr(adjacency, "centroids", None))
    pairs = guarantee.regime == "histogram" and guarantee.details["scores"] > len(ROWS)
    how = (guarantee.details.get("reduction"), guarantee.details.get("center"))
    return guarantee.mechanism, guarantee.regime, batch, who, pairs, how, guarantee.delta == 0


#: Kinds that draw as another entry does, on one centroid per identity instead of one record, and calibrations of them.
SAME_AS = {("Identity", True): ("Replacement", None)}


def test_whatever_release_functions_accept_entry() -> None:
    """Whatever the release functions accept has an entry."""
    registered = {kind_of(entry.release(rng=1).guarantee) for entry in ENTRIES}
    missing = set()
    for kind in produced():
        other = (*kind[:3], SAME_AS.get(kind[3], kind[3]), *kind[4:])
        if kind not in registered and other not in registered:
            missing.add(kind)
    assert missing == set()


def test_a_missing_entry_would_be_noticed() -> None:
    registered = {kind_of(entry.release(rng=1).guarantee) for entry in ENTRIES if entry.mechanism != "gumbel"}
    assert not produced() <= registered


def test_every_adjacency_has_an_entry() -> None:
    known = {type(entry.release(rng=1).guarantee.adjacency) for entry in ENTRIES}
    assert known == set(Adjacency.__subclasses__())


def test_guarantees_made_registry_looks() -> None:
    """Guarantees are made where the registry looks."""
    folder = Path(ss.__file__).parent
    texts = {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.py")}
    assert not {name for name, text in texts.items() if " Guarantee(\n" in text}, "a constructor states the facts"
    makers = {name for name, text in texts.items() if "Guarantee.for_" in text}
    names = ("pipeline", "index_plan", "codebook", "histogram", "scores", "matches", "top_k", "batch")
    assert makers == {*(f"releases/{name}.py" for name in names), "search/hits.py"}


# Payment.


class Account:
    """An account that writes down what happens, in order, and can fail at either step."""

    dataset = "faces"

    def __init__(self, happened: list[str], fails: str = "", error: BaseException | None = None) -> None:
        self.happened, self.fails, self.error = happened, fails, error
        self.charged: list[Any] = []

    def reserve(self, guarantees: Any, *, adjacency: Adjacency, same_people: bool = False) -> Account:
        self.asked, self.adjacency, self.same_people = list(guarantees), adjacency, same_people
        return self._step("reserve")

    def commit(self) -> list[Any]:
        self._step("commit")
        self.charged += self.asked
        return []

    def _step(self, name: str) -> Account:
        self.happened.append(name)
        if self.error is not None and self.fails == name:
            raise self.error
        return self


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys and words of the stream as they are taken."""
    order: list[str] = []
    urandom, words = os.urandom, SecureStream.words

    def key(count: int) -> bytes:
        order.append("draw")
        return urandom(count)

    def drawn(self: SecureStream, count: int, *room: Any) -> Any:
        order.append("draw")
        return words(self, count, *room)

    monkeypatch.setattr(os, "urandom", key)
    monkeypatch.setattr(SecureStream, "words", drawn)
    return order


@every_entry
def test_charge_before_the_noise(entry: Entry, happened: list[str]) -> None:
    """Each release is charged once, for what its certificate says, before any random bit is drawn."""
    account = Account(happened)
    release = entry.release(ledger=account)
    assert happened[:3] == ["reserve", "commit", "draw"]
    assert set(happened[3:]) == {"draw"}
    assert account.charged == [release.guarantee]
    assert account.charged[0].profile == release.guarantee.profile
    # A ledger tells groupings apart by their labels, and takes them for the same people only where somebody says so.
    assert account.adjacency.drop_labels() == release.guarantee.adjacency
    assert not isinstance(account.adjacency, ss.Identity) or np.array_equal(account.adjacency.labels, LABELS)
    assert account.same_people is (entry.regime == "hits")  # a search says so for its store
    assert release.guarantee.sampler == "exact"


@every_entry
@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("reserve", ss.BudgetExceeded("no budget is left", limit=1.0, spent=1.0, asked=1.0)),
        ("reserve", ss.LedgerError("the disk is full")),
        ("commit", ss.LedgerError("the disk is full")),
        ("commit", KeyboardInterrupt()),
    ],
    ids=repr,
)
def test_nothing_is_drawn_where_the_payment_fails(
    entry: Entry, step: str, error: BaseException, happened: list[str]
) -> None:
    account = Account(happened, step, error)
    with pytest.raises(type(error)):
        entry.release(ledger=account)
    assert "draw" not in happened
    assert account.charged == []


def test_release_draws_before_pays_would_noticed(happened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For each of the faults: drawing first, and paying twice."""
    release = pipeline.PendingRelease.release

    def draws_first(self: Any, ledger: Any) -> Any:
        SecureStream().words(1)
        return release(self, ledger)

    def pays_twice(self: Any, ledger: Any) -> Any:
        release(self, ledger)
        return release(self, ledger)

    for fault in (draws_first, pays_twice):
        monkeypatch.setattr(pipeline.PendingRelease, "release", fault)
        happened.clear()
        with pytest.raises(AssertionError):
            test_charge_before_the_noise(ENTRIES[0], happened)


# Time and randomness do not depend on the scores.


def words_drawn(entry: Entry, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many random words a release of other rows takes, from one seed."""
    drawn = [0]
    words = ResearchStream.words

    def counted(self: ResearchStream, count: int) -> Any:
        drawn[0] += count
        return words(self, count)

    with monkeypatch.context() as patch:
        patch.setattr(ResearchStream, "words", counted)
        patch.setattr(mechanism_registry, "ROWS", rows)
        entry.release(rng=3)
    return drawn[0]


#: Mechanisms whose number of words depends on the scores, or on what is released of them (docs/noise.md).
DEPENDING = ("gumbel", "privunit", "screen-and-refine", "hit-budget")


@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if entry.mechanism not in DEPENDING], ids=lambda entry: entry.name
)
def test_number_random_words_not_depend_scores(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of random words does not depend on the scores."""
    others = (ROWS, -ROWS, np.tile(QUERY, (len(ROWS), 1)), np.eye(*ROWS.shape))
    assert len({words_drawn(entry, rows, monkeypatch) for rows in others}) == 1


def test_the_count_of_words_notices_what_depends(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = BY_NAME["matches, refined"]
    all_pass, none_pass = np.tile(QUERY, (len(ROWS), 1)), np.tile(-QUERY, (len(ROWS), 1))
    assert words_drawn(entry, all_pass, monkeypatch) != words_drawn(entry, none_pass, monkeypatch)


# A random source that fails.


@every_entry
@pytest.mark.parametrize("error", [OSError("no entropy"), NotImplementedError("no source")], ids=repr)
def test_failing_operating_system_generator_ends(
    entry: Entry, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing operating system generator ends the release."""

    def fails(count: int) -> bytes:
        del count
        raise error

    def seeded(*_: Any, **__: Any) -> Any:
        raise AssertionError("fell back to a seeded generator")

    entry.release()  # the key of an earlier release is no source either
    monkeypatch.setattr(os, "urandom", fails)
    monkeypatch.setattr(np.random, "default_rng", seeded)
    with pytest.raises(type(error), match=str(error)):
        entry.release()


@every_entry
def test_a_failing_cipher_ends_the_release(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no AES in this build")

    monkeypatch.setattr("scoreshield.privacy.sampling.stream.Cipher", fails)
    with pytest.raises(RuntimeError, match="no AES"):
        entry.release()


# What is drawn is what is certified.


@every_entry
def test_reaches_samplers_certificate_says(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reaches the samplers is what the certificate says."""
    calls = watch_samplers(monkeypatch)
    guarantee = entry.release(rng=1).guarantee
    assert (guarantee.mechanism, guarantee.regime) == (entry.mechanism, entry.regime)
    assert guarantee.delta_at(guarantee.epsilon) <= guarantee.delta
    monkeypatch.undo()
    entry.check(guarantee, calls)


def shorter_gaussian(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = noise_module.fill_rounded_gaussian
    monkeypatch.setattr(noise_module, "fill_rounded_gaussian", lambda s, scale, out: fill(s, 0.98 * scale, out))


def shorter_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    fill, geometric = histogram.fill_rounded_gaussian, histogram._two_sided_geometric
    monkeypatch.setattr(histogram, "fill_rounded_gaussian", lambda s, scale, out: fill(s, 0.98 * scale, out))
    monkeypatch.setattr(histogram, "_two_sided_geometric", lambda s, rate, n: geometric(s, rate / 0.98, n))


def shorter_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_gumbel", "_permute_and_flip"):
        choose = getattr(top_k, name)
        monkeypatch.setattr(top_k, name, lambda s, steps, scale, choose=choose: choose(s, steps, 0.98 * scale))


def shorter_laplace(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = discrete.fill_rounded_laplace
    monkeypatch.setattr(discrete, "fill_rounded_laplace", lambda s, scale, out: fill(s, scale * (1 - 2**-30), out))


def narrower_staircase(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = discrete.fill_staircase
    monkeypatch.setattr(discrete, "fill_staircase", lambda s, e, width, inner, out: fill(s, e, width - 1, inner, out))


def narrower_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One grid step too few in both the certificate and the draw."""
    across = pipeline.count_steps
    for module in (pipeline, matches, top_k):
        monkeypatch.setattr(module, "count_steps", lambda low, high, step: across(low, high, step) - 1)


def wider_inner_part(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = discrete.fill_staircase
    monkeypatch.setattr(discrete, "fill_staircase", lambda s, e, width, inner, out: fill(s, e, width, inner + 1, out))


def larger_staircase_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = discrete.fill_staircase
    monkeypatch.setattr(
        discrete, "fill_staircase", lambda s, e, width, inner, out: fill(s, np.nextafter(e, 9), width, inner, out)
    )


def other_table(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = discrete.draw_columns

    def shifted(stream: Any, table: Any, rows: Any) -> Any:
        table = table.copy()
        table[0, 0] += np.uint64(1)
        return choose(stream, table, rows)

    monkeypatch.setattr(discrete, "draw_columns", shifted)


def other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit of probability moved from one end of the table to the other."""
    fill = discrete.fill_table

    def shifted(stream: Any, weights: Any, first: int, out: Any) -> Any:
        return fill(stream, (weights[0] - 1, *weights[1:-1], weights[-1] + 1), first, out)

    monkeypatch.setattr(discrete, "fill_table", shifted)


def narrower_custom_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate for one grid step fewer than the scores can move."""
    monkeypatch.setattr(
        ss.CustomNoise,
        "state_profile",
        lambda self, epsilon, state=ss.CustomNoise.state_profile: state(
            dataclasses.replace(self, sensitivity=self.sensitivity - self.step), epsilon
        ),
    )


def surer_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = matches._keep_bits
    monkeypatch.setattr(matches, "_keep_bits", lambda s, epsilon, count: kept(s, epsilon * (1 + 1e-12), count))


def surer_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = response.SetResponse._keep_probability
    monkeypatch.setattr(
        response.SetResponse,
        "_keep_probability",
        lambda self: kept(dataclasses.replace(self, epsilon=self.epsilon * (1 + 1e-12))),
    )


def fewer_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lies that never name the last query."""
    draw = response.SetResponse.draw_uniform
    monkeypatch.setattr(
        response.SetResponse,
        "draw_uniform",
        lambda self, stream, count: draw(dataclasses.replace(self, names=self.names - 1), stream, count),
    )


def whole_budget_for_each_symbol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_divide_budget", lambda epsilon, _: epsilon)


def steeper_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor two of the exponential mechanism forgotten."""
    make = anchors._make_weights
    monkeypatch.setattr(anchors, "_make_weights", lambda epsilon: make(2 * epsilon))


def slightly_steeper_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    make = anchors._make_weights
    monkeypatch.setattr(anchors, "_make_weights", lambda epsilon: make(epsilon * (1 + 1e-6)))


def surer_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epsilon of the windows that is 3 % larger."""
    draw = response.WindowResponse.release
    monkeypatch.setattr(
        response.WindowResponse,
        "release",
        lambda self, s, starts: draw(dataclasses.replace(self, epsilon=1.03 * self.epsilon), s, starts),
    )


def anchor_beside_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The anchor's part forgotten in what the windows get."""
    monkeypatch.setattr(tails, "round_difference_down", lambda whole, _: whole)


def narrower_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    lean = sphere.lean
    monkeypatch.setattr(
        sphere, "lean", lambda cap, *given: lean(dataclasses.replace(cap, gamma=cap.gamma * 1.001), *given)
    )


def surer_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    lean = sphere.lean
    monkeypatch.setattr(
        sphere, "lean", lambda cap, *given: lean(dataclasses.replace(cap, coin=cap.coin + 1e-12), *given)
    )


def covariance_for_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group forgotten in both the certificate and the draw of the covariance."""
    noise = index_plan.IndexPlan._moment_noise
    monkeypatch.setattr(index_plan.IndexPlan, "_moment_noise", lambda self: noise(dataclasses.replace(self, group=1)))


def rows_for_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = index_plan.GaussianRows
    monkeypatch.setattr(index_plan, "GaussianRows", lambda components, _, mu: rows(components, 1, mu))


def whole_budget_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_plan.IndexPlan, "per_record", property(lambda self: self.epsilon * (1 - self.share)))


def no_share_for_the_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_plan.IndexPlan, "per_record", property(lambda self: self.epsilon / self.group))


def center_for_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group forgotten in both the certificate and the draw of the center."""
    noise = index_plan.IndexPlan._center_noise
    monkeypatch.setattr(index_plan.IndexPlan, "_center_noise", lambda self: noise(dataclasses.replace(self, group=1)))


def surer_response(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = response.SetResponse._keep_probability
    monkeypatch.setattr(
        response.SetResponse,
        "_keep_probability",
        lambda self: keep(dataclasses.replace(self, epsilon=self.epsilon * (1 + 1e-12))),
    )


def fewer_codewords(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last codeword is never drawn by chance."""
    draw = response.SetResponse.draw_uniform
    monkeypatch.setattr(
        response.SetResponse,
        "draw_uniform",
        lambda self, s, count: draw(dataclasses.replace(self, names=self.names - 1), s, count),
    )


def noise_of_the_upper_triangle_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    law = laws.GaussianNoise
    monkeypatch.setattr(index_plan, "GaussianNoise", lambda std: law(std))
    monkeypatch.setattr(index_plan.math, "sqrt", lambda x, root=index_plan.math.sqrt: 0.5 if x == 0.5 else root(x))


NEAR_MISSES: list[tuple[str, Callable[[pytest.MonkeyPatch], None]]] = [
    *((name, shorter_gaussian) for name in BY_NAME if "aussian" in name and "histogram" not in name),
    *((name, shorter_gaussian) for name in BY_NAME if name.startswith(("row", "Gram")) or "PCA" in name),
    *((name, shorter_histogram) for name in BY_NAME if "histogram" in name),
    *((name, shorter_selection) for name in BY_NAME if "top-k" in name),
    *((name, narrower_steps) for name in BY_NAME if "top-k" in name),
    *((name, shorter_laplace) for name in BY_NAME if "aplace" in name),
    *((name, narrower_steps) for name in BY_NAME if "aplace" in name),
    *(
        (name, fault)
        for name in BY_NAME
        if BY_NAME[name].mechanism in ("staircase", "screen-and-refine")
        for fault in (narrower_staircase, narrower_steps, wider_inner_part, larger_staircase_epsilon)
    ),
    *((name, other_table) for name in BY_NAME if "table" in name or name.startswith("hits")),
    *((name, fault) for name in BY_NAME if "custom" in name for fault in (other_weights, narrower_custom_range)),
    *((name, surer_coins) for name in BY_NAME if "matches" in name),
    *(
        (name, fault)
        for name in BY_NAME
        if "anchored" in name and "too few" not in name
        for fault in (steeper_anchor, slightly_steeper_anchor, surer_windows, anchor_beside_the_budget)
    ),
    *((name, fault) for name in BY_NAME if "privunit" in name for fault in (narrower_cap, surer_cap)),
    *((name, fault) for name in BY_NAME if name.startswith("batch") for fault in (surer_symbols, fewer_symbols)),
    *((name, whole_budget_for_each_symbol) for name in BY_NAME if name.startswith("batch") and "identities" in name),
    *((name, covariance_for_one_record) for name in BY_NAME if "PCA, identities" in name),
    ("index, gaussian, all dimensions, identities", rows_for_one_record),
    ("index, gaussian, private PCA, identities", rows_for_one_record),
    ("index, privunit, all dimensions, identities", whole_budget_for_each_record),
    ("index, privunit, private PCA, identities", whole_budget_for_each_record),
    ("index, privunit, private PCA, identities", no_share_for_the_covariance),
    ("index, privunit, private PCA, records", no_share_for_the_covariance),
    ("index, gaussian, private PCA, records", noise_of_the_upper_triangle_halved),
    *((name, center_for_one_record) for name in BY_NAME if "private center, identities" in name),
    *((name, shorter_gaussian) for name in BY_NAME if "privunit, private center" in name),
    ("index, privunit, private center, identities", whole_budget_for_each_record),
    ("index, privunit, private center, records", no_share_for_the_covariance),
    *((name, fault) for name in BY_NAME if "codebook" in name for fault in (surer_response, fewer_codewords)),
]


@pytest.mark.parametrize(
    ("name", "fault"), NEAR_MISSES, ids=[f"{name}: {fault.__name__}" for name, fault in NEAR_MISSES]
)
def test_near_misses_are_noticed(name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = BY_NAME[name]
    calls = watch_samplers(monkeypatch)
    fault(monkeypatch)
    guarantee = entry.release(rng=1).guarantee
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        entry.check(guarantee, calls)


def test_every_entry_has_a_near_miss() -> None:
    assert {name for name, _ in NEAR_MISSES} == set(BY_NAME)


def test_watch_sees_outermost_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch sees only the outermost sampler."""
    calls = watch_samplers(monkeypatch)
    discrete.fill_staircase(SecureStream(), 1.0, 8, 3, np.empty(5))
    assert calls == [Call("staircase", (1.0, 8, 3), 5)]
