"""A guarantee that was edited contradicts itself, for every mechanism; one that was not, never does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mechanism_registry import BATCH, BY_NAME, CENTROIDS, ENTRIES, GROUP, QUERY, RAW, RECORDS, ROWS, Entry

import scoreshield as ss
from scoreshield.privacy.composition import compose, parallel
from scoreshield.privacy.levels.program import WHOLE
from scoreshield.privacy.mechanisms import MECHANISMS
from scoreshield.privacy.profiles import CurveProfile, GaussianProfile, PureProfile

every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
Data = dict[str, Any]


def data_of(entry: Entry) -> Data:
    found: Data = json.loads(json.dumps(entry.release(rng=1).guarantee.to_dict()))
    return found


def accepted(data: Data) -> bool:
    try:
        ss.Guarantee.from_dict(data)
    except ss.InvalidInput:
        return False
    return True


def with_details(data: Data, **details: Any) -> Data:
    return {**data, "details": {**data["details"], **details}}


@every_entry
def test_what_was_not_edited_comes_back(entry: Entry) -> None:
    guarantee = entry.release(rng=1).guarantee
    assert ss.Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict()))) == guarantee


def honest() -> Iterator[Callable[[], Any]]:
    """Contracts of every size, so that no honest guarantee is rejected."""
    rng = np.random.default_rng(19)
    for _ in range(12):
        epsilon, delta = float(10 ** rng.uniform(-2, 1.6)), float(10 ** rng.uniform(-12, -1))
        low = float(rng.uniform(-1, 0.3))
        high = float(rng.uniform(low + 0.3, 1))
        contract = {"epsilon": epsilon, "rng": 1, "score_range": (low, high)}
        noisy = {**contract, "delta": delta}
        k, share = int(rng.integers(1, 9)), float(rng.uniform(0.05, 0.9))
        pca = {"components": 3, "reduction": "pca", "pca_share": share, "rng": 1, "epsilon": max(epsilon, 0.2)}
        yield lambda c=noisy: ss.release_scores(ROWS, QUERY, **c)
        yield lambda c=noisy: ss.release_row(ROWS, 2, **c)
        yield lambda c=noisy: ss.release_gram(ROWS, projection="none", **c)
        yield lambda c=contract: ss.release_scores(ROWS, QUERY, mechanism="laplace", **c)
        yield lambda c=contract: ss.release_scores(ROWS, QUERY, mechanism="staircase", **c)
        yield lambda c=contract, t=low: ss.release_matches(ROWS, QUERY, t, **c)
        yield lambda c=contract, t=(low + high) / 2, s=share: ss.release_matches(ROWS, QUERY, t, refine=s, **c)
        yield lambda c=contract, k=k: ss.release_top_k(ROWS, QUERY, k, **c)
        yield lambda c=contract: ss.release_histogram(ROWS, QUERY, **c)
        yield lambda e=epsilon, k=k, s=k // 3 + 1: ss.release_batch(ROWS, BATCH, epsilon=e, k=k, names=s, rng=1)
        yield lambda c=noisy: ss.release_histogram(ROWS, None, mechanism="gaussian", **c)
        yield lambda p=pca, d=delta: ss.release_index(ROWS, delta=d, **p)
        yield lambda p=pca, d=delta: ss.release_index(ROWS, delta=d, mechanism="gaussian", **p)
    paper = {"calibration": "classical", "unsafe_reproduce_paper": True, "rng": 1}
    yield lambda: ss.release_scores(ROWS, QUERY, epsilon=8, delta=1e-3, **paper)
    yield lambda: ss.release_scores(ROWS, QUERY, epsilon=0.5, delta=1e-6, calibration="conservative", rng=1)


def test_no_honest_guarantee_is_rejected() -> None:
    for make in honest():
        data = make().guarantee.to_dict()
        assert accepted(data), data


# Understated profiles.


@every_entry
def test_profile_too_good_anywhere_noticed(entry: Entry) -> None:
    """A curve through the true values, except for one knot that lies 3 % too low."""
    data = data_of(entry)
    profile, epsilon = ss.Guarantee.from_dict(data).profile, data["epsilon"]
    losses = [epsilon * i / 64 for i in range(65)]
    deltas = [profile.delta_at(loss) for loss in losses]
    assert deltas[-1] <= data["delta"]
    for place in (0, 9, 31, 50):
        forged = list(deltas)
        forged[place] = max(0.97 * forged[place], forged[place + 1])
        curve = {"kind": "curve", "losses": losses, "deltas": forged}
        assert not accepted({**data, "profile": curve})


@every_entry
def test_profile_smaller_parameter_noticed(entry: Entry) -> None:
    """A profile with a smaller parameter is noticed."""
    data = data_of(entry)
    for name, value in data["profile"].items():
        if name in ("mu", "epsilon", "mass"):
            assert not accepted({**data, "profile": {**data["profile"], name: 0.999 * value}})
        if name == "deltas":
            assert not accepted({**data, "profile": {**data["profile"], name: [0.97 * delta for delta in value]}})


@every_entry
def test_a_smaller_promise_is_noticed(entry: Entry) -> None:
    data = data_of(entry)
    assert not accepted({**data, "epsilon": 0.99 * data["epsilon"]})
    if data["delta"]:
        assert not accepted({**data, "delta": 0.9 * data["delta"]})
        assert not accepted({**data, "delta": 0.0})


@every_entry
def test_less_noise_or_less_sensitivity_noticed(entry: Entry) -> None:
    """Less noise or less sensitivity is noticed."""
    data = data_of(entry)
    if entry.regime != "matches":  # where both are the constant 1
        assert not accepted({**data, "sensitivity": 0.9 * data["sensitivity"]})
    if entry.mechanism in ("gaussian", "geometric", "gumbel", "permute-and-flip", "privunit", "screen-and-refine"):
        assert not accepted({**data, "scale": 0.98 * data["scale"]})
    if data["noise"] and entry.mechanism not in ("optimal", "levels"):
        name = {"gaussian": "std", "laplace": "b"}.get(entry.mechanism, "sensitivity")
        assert not accepted({**data, "noise": {**data["noise"], name: 0.98 * data["noise"][name]}})
        for factor in (1.02, 1e-300, 1e-323, 1e300):  # another law than the scale says, or one without a deviation
            name = "epsilon" if entry.mechanism == "staircase" else name
            assert not accepted({**data, "noise": {**data["noise"], name: factor * data["noise"][name]}})


# A delta that is called pure.


@every_entry
def test_a_promise_with_delta_is_not_called_pure(entry: Entry) -> None:
    data = data_of(entry)
    if data["delta"] == 0:
        assert not accepted({**data, "delta": 1e-10})
        assert "pure" in str(ss.Guarantee.from_dict(data))
    else:
        assert not accepted({**data, "calibration": "pure"})
        assert "pure" not in str(ss.Guarantee.from_dict(data)).split("Protects")[0]


def test_a_tiny_delta_is_printed_as_one() -> None:
    guarantee = ss.release_scores(ROWS, QUERY, epsilon=1, delta=1e-10, rng=1).guarantee
    assert "(1, 1e-10)-differential privacy" in str(guarantee)
    assert not accepted({**guarantee.to_dict(), "delta": 0.0, "calibration": "pure"})


@pytest.mark.parametrize(
    ("epsilon", "shown"), [(1.0000001, "1.00001"), (0.1, "0.1"), (2.0, "2"), (12.3456789, "12.3457")]
)
def test_certificate_never_rounds_promise_down(epsilon: float, shown: str) -> None:
    """A certificate never rounds its promise down."""
    assert f"pure {shown}-differential" in str(
        ss.release_scores(ROWS, QUERY, epsilon=epsilon, mechanism="laplace").guarantee
    )


# Names that do not belong together.


@every_entry
def test_another_mechanisms_name_is_noticed(entry: Entry) -> None:
    data = data_of(entry)
    for other in MECHANISMS:
        if other != entry.mechanism and {other, entry.mechanism} not in ALIKE:
            assert not accepted({**data, "mechanism": other}), other


#: The two tables and the two selections have the same promise for the same numbers.
ALIKE = ({"optimal", "levels"}, {"permute-and-flip", "gumbel"})


# Budgets of parts.


def test_tampered_screening_refining_budgets() -> None:
    """Tampered screening and refining budgets are noticed."""
    data = data_of(BY_NAME["matches, refined"])
    screening, refining = data["details"]["screening_epsilon"], data["details"]["refining_epsilon"]
    for changed in (
        {"refining_epsilon": 0.0},
        {"refining_epsilon": 0.9 * refining},
        {"refining_epsilon": refining + 1e-6},
        {"refining_epsilon": -refining, "screening_epsilon": 1.0 + refining},
        {"screening_epsilon": 0.0, "refining_epsilon": 1.0},
        {"screening_epsilon": refining, "refining_epsilon": screening},
        {"screening_epsilon": screening + 1e-6},
        {"threshold": 1.5},
        {"threshold": 0.2},
        {"refining_epsilon": None},
        {"refining_epsilon": "0.3"},
        {"refining_epsilon": math.nan},
    ):
        assert not accepted(with_details(data, **changed)), changed
    plain = data_of(BY_NAME["matches"])
    for changed in ({"refining_epsilon": 0.5}, {"screening_epsilon": 1.1}, {"screening_epsilon": -1.0}):
        assert not accepted(with_details(plain, **changed)), changed
    assert not accepted(with_details(plain, screening_epsilon=0.5, refining_epsilon=0.5))


def test_tampered_selections_are_noticed() -> None:
    data = data_of(BY_NAME["top-k, gumbel"])
    for changed in ({"epsilon_for_each": 0.5}, {"epsilon_for_each": 0.1}, {"epsilon_for_each": -1.0}, {"records": 2}):
        assert not accepted(with_details(data, **changed)), changed


@pytest.mark.parametrize("name", [name for name in BY_NAME if name.startswith("index, privunit")])
def test_tampered_shares_of_an_index_are_noticed(name: str) -> None:
    data = data_of(BY_NAME[name])
    each = data["details"]["epsilon_per_record"]
    for changed in (
        {"epsilon_per_record": each * 1.001},
        {"epsilon_per_record": each * 0.99},
        {"cap_height": 0.5 * data["details"]["cap_height"]},
        {"shrinkage": 1.01 * data["details"]["shrinkage"]},
    ):
        assert not accepted(with_details(data, **changed)), changed


@pytest.mark.parametrize("name", [name for name in BY_NAME if "private PCA" in name])
def test_a_tampered_covariance_is_noticed(name: str) -> None:
    data = data_of(BY_NAME[name])
    told = data["details"]
    for changed in (
        {"covariance_std": 0.9 * told["covariance_std"]},
        {"covariance_sensitivity": 1.1 * told["covariance_sensitivity"]},
        {"covariance_sensitivity": 0.9 * told["covariance_sensitivity"]},
    ):
        small = changed.get("covariance_sensitivity", math.inf) < told["covariance_sensitivity"]
        if small and told["covariance_sensitivity"] * 0.9 > math.sqrt(2) * data["adjacency"].get("largest", 1):
            continue
        assert not accepted(with_details(data, **changed)), changed


@pytest.mark.parametrize("name", [name for name in BY_NAME if "private center" in name])
def test_a_tampered_center_is_noticed(name: str) -> None:
    data = data_of(BY_NAME[name])
    told, largest = data["details"], data["adjacency"].get("largest", 1)
    for changed in (
        {"center_std": 0.9 * told["center_std"]},
        {"center_sensitivity": 1.1 * told["center_sensitivity"]},
        {"center_sensitivity": 1.99 * largest},
        {"center": "public"},
        {"center": "none"},
        {"center_share": 1.0},
        {"center_fingerprint": "0" * 64},
    ):
        assert not accepted(with_details(data, **changed)), changed
    assert not accepted({**data, "delta": 0.0, "calibration": "pure"})


def test_a_tampered_public_center_is_noticed() -> None:
    data = data_of(BY_NAME["index, privunit, public center, records"])
    for changed in ({"center": "private"}, {"center": "none"}, {"center_fingerprint": "0"}, {"center_share": 0.1}):
        assert not accepted(with_details(data, **changed)), changed


@pytest.mark.parametrize("name", [name for name in BY_NAME if "codebook" in name])
def test_a_tampered_codebook_is_noticed(name: str) -> None:
    data = data_of(BY_NAME[name])
    told = data["details"]
    for changed in (
        {"epsilon_per_record": 1.01 * told["epsilon_per_record"]},
        {"codewords": told["codewords"] + 1},
        {"codewords": 1},
        {"code_size": told["code_size"] + 1},
        {"true_code_probability": 0.99 * told["true_code_probability"]},
        {"fingerprint": "0"},
        {"fingerprint": None},
    ):
        assert not accepted(with_details(data, **changed)), changed
    assert not accepted({**data, "delta": 1e-6})
    assert not accepted({**data, "scale": 0.5})
    assert not accepted({**data, "grid": 0.5})
    assert not accepted({**data, "epsilon": 0.99 * data["epsilon"]})


def test_identities_cannot_become_records() -> None:
    """Three records of one person share a budget: the same index for single records would promise three times less."""
    for name in ("privunit, all dimensions", "gaussian, all dimensions", "codebook"):
        data = data_of(BY_NAME[f"index, {name}, records"])
        raw = {**data["adjacency"], "kind": "identity", "centroids": False, "identities": 4, "largest": 3}
        assert not accepted({**data, "adjacency": raw})


# Adjacencies: who is protected must be whom the mechanism can protect.

RADIUS: Data = {"kind": "gram-radius", "radius": 1e-3}


def people(identities: Any, largest: Any, *, centroids: Any = False) -> Data:
    return {"kind": "identity", "centroids": centroids, "identities": identities, "largest": largest}


@every_entry
def test_records_cannot_become_groups_score_move(entry: Entry) -> None:
    """An edited adjacency alone would promise one person with many records what was drawn for one record."""
    data = data_of(entry)
    moves_one = entry.mechanism not in ("gaussian", "privunit", "codebook") or entry.regime == "histogram"
    for identities, largest in ((RECORDS // 2, 2), (4, 4), (1, RECORDS), (2, RECORDS - 1)):
        if moves_one:
            assert not accepted({**data, "adjacency": people(identities, largest)}), (identities, largest)
    assert accepted({**data, "adjacency": RADIUS}) == (entry.name == "Gram matrix, radius")


@every_entry
@pytest.mark.parametrize(
    ("identities", "largest", "centroids"),
    [
        (-7, 1, True),
        (0, 1, True),
        (RECORDS + 1, 1, True),
        (4.0, 1, True),
        ("4", 1, True),
        (True, 1, True),
        (4, 3, True),
        (2, -5, False),
        (2, 0, False),
        (2, 2.0, False),
        (2, None, False),
        (RECORDS + 1, 1, False),  # more people than records
        (1, RECORDS + 1, False),
        (3, 3, False),  # room for nine of twelve records
        (RECORDS - 1, 3, False),  # ten people with a record each, and one with three
        (4, 3, 0),
        (4, 1, 1),
        (4, 1, "yes"),
    ],
)
def test_counts_that_no_labels_have_are_noticed(entry: Entry, identities: Any, largest: Any, centroids: Any) -> None:
    adjacency = people(identities, largest, centroids=centroids)
    assert not accepted({**data_of(entry), "adjacency": adjacency})


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES if "identities" in entry.name])
def test_rows_of_people_cannot_become_centroids(name: str) -> None:
    data = data_of(BY_NAME[name])
    assert not accepted({**data, "adjacency": {**data["adjacency"], "centroids": True}})
    assert not accepted({**data, "adjacency": people(RECORDS // GROUP, 1, centroids=True)})


@pytest.mark.parametrize(
    "entry",
    [entry for entry in ENTRIES if not set(entry.name.split(", ")) & {"records", "identities", "centroids", "radius"}],
    ids=lambda entry: entry.name,
)
def test_release_functions_accept_loads(entry: Entry) -> None:
    """An adjacency that a release takes loads with its guarantee; one that it rejects does not load in its place."""
    for adjacency in (RAW, CENTROIDS, ss.Identity(np.arange(RECORDS)), ss.Replacement(), ss.GramRadius(0.5)):
        try:
            release = entry.release(rng=1, adjacency=adjacency)
        except ss.InvalidInput:
            found: Data = adjacency.to_dict()
            assert not accepted({**data_of(entry), "adjacency": found}), found
        else:
            assert accepted(json.loads(json.dumps(release.guarantee.to_dict())))


def test_histograms_smallest_collections_load() -> None:
    """Histograms of the smallest collections load."""
    for rows, query in ((ROWS[:1], QUERY), (ROWS[:2], QUERY), (ROWS[:2], None), (ROWS[:3], None)):
        for adjacency in (ss.Replacement(), ss.Identity(np.arange(len(rows)), centroids=True)):
            data = ss.release_histogram(rows, query, epsilon=1, adjacency=adjacency, rng=1).guarantee.to_dict()
            assert accepted(data)
            assert not accepted({**data, "adjacency": people(len(rows) + 2, 1, centroids=True)})


# Shapes: how many records, and how many queries at once.


@every_entry
def test_shape_release_not_noticed(entry: Entry) -> None:
    """A shape that the release does not have is noticed."""
    data = data_of(entry)
    shape = data["shape"]
    for other in ([], [1, *shape, 1], [4, 5, 6]):
        assert not accepted({**data, "shape": other}), other
    if len(shape) == 1 and entry.regime != "scores":
        assert not accepted({**data, "shape": [1, *shape]})
    if len(shape) == 2 and entry.regime != "scores":
        assert not accepted({**data, "shape": shape[:1]})
    if entry.regime == "gram":
        assert not accepted({**data, "shape": [shape[0], shape[0] + 1]})
    if entry.regime == "scores" and entry.mechanism != "gaussian":
        assert accepted({**data, "shape": [1, *shape]})
        assert not accepted({**data, "shape": [2, *shape]})  # two queries move two scores


@every_entry
def test_another_regime_is_noticed(entry: Entry) -> None:
    """Whatever is called an index, a row or a histogram ends in one sentence; some shapes are those of another."""
    data = data_of(entry)
    for regime in ("scores", "row", "gram", "matches", "top-k", "histogram", "index", "batch", "rows", None, 3):
        if regime != entry.regime and {regime, entry.regime} not in ({"scores", "row"}, {"scores", "index"}):
            assert not accepted({**data, "regime": regime}), regime
        accepted({**data, "regime": regime})


def test_an_edited_file_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "release.npz"
    BY_NAME["matches, refined"].release(rng=1).save(path)
    with np.load(path) as file:
        parts = dict(file)
    meta = json.loads(str(parts.pop("meta")))
    assert ss.load(path).guarantee.epsilon == 1
    meta["guarantee"]["details"]["refining_epsilon"] = 0.0
    np.savez(path, meta=np.array(json.dumps(meta)), **parts)
    with pytest.raises(ss.InvalidInput, match="contradicts itself"):
        ss.load(path)


def test_a_tampered_batch_is_noticed() -> None:
    """Cuts that no cosine reaches, a source that is no text, facts that nobody checks, facts left out."""
    data = json.loads(
        json.dumps(ss.release_batch(ROWS, BATCH, epsilon=2, k=2, levels=[0.1, 0.3], rng=1).guarantee.to_dict())
    )
    assert accepted(data)
    assert accepted(with_details(data, cuts=[-1.0, 1.0]))
    assert not accepted(with_details(data, cuts=[0.1, 1.5]))
    assert not accepted(with_details(data, cuts=[-1.5, 0.3]))
    assert not accepted(with_details(data, cuts_from=7))
    assert not accepted(with_details(data, share=0.1))
    assert not accepted(with_details(data, protected="everything"))
    for name in data["details"]:
        assert not accepted({**data, "details": {key: data["details"][key] for key in data["details"] if key != name}})


@every_entry
def test_a_fact_that_no_release_states_is_noticed(entry: Entry) -> None:
    """A certificate prints details as sentences, so each kind of release has its own ones and no others."""
    if entry.regime not in ("index", "batch", "hits"):
        return
    data = data_of(entry)
    assert not accepted(with_details(data, promise=0.5))
    assert not accepted({**data, "score_range": [-0.5, 0.5]})
    assert not accepted(with_details(data, changes="public" if "changes" not in data["details"] else "none"))
    for name in data["details"]:
        assert not accepted({**data, "details": {key: data["details"][key] for key in data["details"] if key != name}})
    for changed in ({"source": 7}, {"reduction": "anything"}, {"center_share": 0.9}):
        if data["details"].keys() >= changed.keys():
            is_gaussian = entry.mechanism == "gaussian" and "center_share" in changed
            assert accepted(with_details(data, **changed)) == is_gaussian, changed


HOSTILE: tuple[Any, ...] = (None, "x", [], {}, [1, 2], 1e308, -1.0, 0, math.nan, math.inf, 2**70, True)


@pytest.mark.parametrize(
    "name", sorted({(entry.mechanism, entry.regime): entry.name for entry in reversed(ENTRIES)}.values())
)
def test_hostile_values_end_in_one_sentence(name: str) -> None:
    """Whatever stands in a field or in a detail: it is accepted, or InvalidInput is raised."""
    data = data_of(BY_NAME[name])
    for value in HOSTILE:
        outcomes = [accepted({**data, field: value}) for field in data]
        outcomes += [accepted(with_details(data, **{detail: value})) for detail in data["details"]]
        assert not all(outcomes)  # no value is right in every field


# Tables: the excess of two outputs adds up.


def table(weights: list[list[int]], epsilon: float, delta: float) -> ss.LevelChannel:
    outputs = tuple(float(i) / 8 for i in range(len(weights[0])))
    return ss.LevelChannel((-0.5, 0.5), (0.0,), outputs, 0.125, np.array(weights, dtype=np.uint64), epsilon, delta)


def test_excess_spread_over_two_outputs_noticed() -> None:
    """Each output alone exceeds e^epsilon by at most delta; together they exceed it by twice that."""
    epsilon, delta = 0.5, 1e-3
    part = int(delta * WHOLE)
    base, ratio = WHOLE // 8, math.exp(epsilon)
    more = int(base * ratio) + int(0.9 * part)
    rows = [[more, more, WHOLE - 2 * more], [base, base, WHOLE - 2 * base]]
    with pytest.raises(ss.InvalidInput, match="not \\(epsilon, delta\\)"):
        table(rows, epsilon, delta)
    made = table(rows, epsilon, 2 * delta)
    assert made.profile().delta_at(epsilon) == pytest.approx(1.8 * delta, rel=1e-6)
    half = int(base * ratio) + int(0.45 * part)
    assert table([[half, half, WHOLE - 2 * half], rows[1]], epsilon, delta).delta == delta
    forged = {**made.to_dict(), "delta": delta}
    with pytest.raises(ss.InvalidInput, match="not \\(epsilon, delta\\)"):
        ss.LevelChannel.from_dict(forged)
    released = ss.release_scores(
        ROWS, QUERY, epsilon=epsilon, delta=2 * delta, mechanism=made, rng=1
    ).guarantee.to_dict()
    assert accepted(released)
    assert not accepted({**released, "delta": delta, "noise": {**released["noise"], "delta": delta}})
    understated = {**released["profile"], "deltas": [delta / 2 for _ in released["profile"]["deltas"]]}
    assert not accepted({**released, "delta": delta, "profile": understated})


def test_one_weight_beyond_pure_is_not_pure() -> None:
    epsilon = 1.0
    made = ss.randomised_response(epsilon, [0.0])
    rows = made.weights.tolist()
    rows[0][0] += 2**30  # 2^-32, a delta of about 2e-10
    rows[0][1] -= 2**30
    with pytest.raises(ss.InvalidInput, match="not \\(epsilon, delta\\)"):
        ss.LevelChannel(made.inputs, made.cuts, made.outputs, made.step, np.array(rows, dtype=np.uint64), epsilon)
    loose = ss.LevelChannel(
        made.inputs, made.cuts, made.outputs, made.step, np.array(rows, dtype=np.uint64), epsilon, 1e-9
    )
    assert 1e-10 < loose.profile().delta_at(epsilon) < 1e-9
    assert loose.profile().delta_at(30.0) < 1e-9


# A loss without bound keeps its mass.

LEAKY = CurveProfile((0.0, 0.5, 1.0), (0.2, 0.08, 1e-3))


def test_residual_mass_stays() -> None:
    for epsilon in (1.0, 5.0, 699.0, 1e6):
        assert LEAKY.delta_at(epsilon) >= 1e-3
    assert LEAKY.epsilon_at(0.999e-3) == math.inf
    assert LEAKY.epsilon_at(0.0) == math.inf
    assert LEAKY.tpr_at(0.0) >= 1e-3
    assert parallel([LEAKY, PureProfile(0.1)]).delta_at(50.0) >= 1e-3
    for others in ([PureProfile(0.1)], [GaussianProfile(0.01)], [LEAKY]):
        assert compose([LEAKY, *others]).delta_at(50.0) >= 1e-3
    assert compose([LEAKY] * 20).delta_at(599.0) >= 1 - (1 - 1e-3) ** 20
    assert compose([LEAKY] * 20).epsilon_at(0.015) == math.inf


def test_a_curve_that_falls_at_once_is_rejected() -> None:
    for losses, deltas in (([0.0, 1.0, 1.0], [0.5, 0.5, 0.0]), ([0.0, 1.0], [0.1, 0.2]), ([0.0, 1.0], [0.1, -0.1])):
        with pytest.raises(ss.InvalidInput, match="falling curve"):
            ss.Guarantee.from_dict(
                {**data_of(ENTRIES[0]), "profile": {"kind": "curve", "losses": losses, "deltas": deltas}}
            )


@pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
def test_index_private_covariance_never_pure(mechanism: str) -> None:
    """At a large epsilon its delta is smaller than any double, and still not 0."""
    data = data_of(BY_NAME[f"index, {mechanism}, private PCA, records"])
    assert accepted({**data, "epsilon": 40.0})
    assert not accepted({**data, "epsilon": 40.0, "delta": 0.0, "calibration": "pure"})


def test_curve_earlier_version_loads_not_pure() -> None:
    """Earlier versions wrote 0 where the delta of a private PCA beside PrivUnit was smaller than any double."""
    data = data_of(BY_NAME["index, privunit, private PCA, records"])
    profile = data["profile"]
    earlier = [delta if delta > 1e-320 else 0.0 for delta in profile["deltas"]]
    assert earlier[-1] == 0
    loaded = ss.Guarantee.from_dict({**data, "profile": {**profile, "deltas": earlier}})
    assert not ss.PrivacyFilter(100.0, 0.0).would_fit(loaded)


@every_entry
def test_stated_beside_promise_checked_too(entry: Entry) -> None:
    """Figures for people and for predictions: whoever reads the certificate takes them for those of the release."""
    data = data_of(entry)
    for name, value in data["details"].items():
        if name in ("score_std", "cap_probability", "cap_height", "shrinkage"):
            assert not accepted(with_details(data, **{name: 0.99 * value}))
        if name in ("levels", "selections"):
            assert not accepted(with_details(data, **{name: value + 1}))
        if name == "pca_share":
            assert not accepted(with_details(data, **{name: -value}))
    assert not accepted({**data, "grid": 1.01 * data["grid"]})
    if data["regime"] != "matches":
        assert not accepted({**data, "scale": 0.99 * data["scale"]})
