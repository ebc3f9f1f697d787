"""What people see of objects in a notebook: HTML, plots, data frames and completion, of released data only."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from scipy import stats

import scoreshield as ss
from scoreshield import plan
from scoreshield._views import NotebookObject, ObjectSummary
from scoreshield.audit import AuditCheck, AuditResult, Claim
from scoreshield.report.objects.html import render_summary
from scoreshield.search import Hit, Hits

pytest.importorskip("pandas", reason="no pandas: pip install 'scoreshield[frames]'")
pytest.importorskip("matplotlib", reason="no Matplotlib: pip install 'scoreshield[plots]'")

N, D = 40, 8
ROWS = np.random.default_rng(3).standard_normal((N, D))
QUERY = np.random.default_rng(4).standard_normal(D)
QUERIES = np.random.default_rng(5).standard_normal((3, D))
IDS = [f"record {place}" for place in range(N)]
PURE: dict[str, Any] = {"epsilon": 4.0}
GAUSSIAN: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-6}
RNG = np.random.default_rng(6)
IMPOSTOR, GENUINE = RNG.normal(0.0, 0.1, 400).clip(-1, 1), RNG.normal(0.7, 0.1, 300).clip(-1, 1)

RELEASES: dict[str, Any] = {
    "scores": lambda: ss.release_scores(ROWS, QUERY, **GAUSSIAN),
    "scores of several queries": lambda: ss.release_scores(ROWS, QUERIES, **GAUSSIAN),
    "levels": lambda: ss.release_scores(ROWS, QUERY, mechanism=ss.randomised_response(4.0, [-0.5, 0.0, 0.5]), **PURE),
    "row": lambda: ss.release_row(ROWS, 3, **GAUSSIAN),
    "gram": lambda: ss.release_gram(ROWS[:12], **GAUSSIAN),
    "factored gram": lambda: ss.release_gram(ROWS[:12], **GAUSSIAN).factored(4),
    "matches": lambda: ss.release_matches(ROWS, QUERY, threshold=0.3, **PURE),
    "refined matches": lambda: ss.release_matches(ROWS, QUERY, threshold=-0.5, refine=0.5, **PURE),
    "top-k": lambda: ss.release_top_k(ROWS, QUERY, k=5, **PURE),
    "histogram": lambda: ss.release_histogram(ROWS, QUERY, **PURE),
    "index": lambda: ss.release_index(ROWS, **PURE),
    "index version": lambda: ss.release_index(ROWS, changes="public", ids=IDS, **PURE),
    "codebook index": lambda: ss.release_index(ROWS, codebook=ss.PublicCodebook(QUERIES), **PURE),
    "batch": lambda: ss.release_batch(ROWS, QUERIES, k=5, **PURE),
}
TAGS = {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"}
NAMES_ONLY = ("matches", "top-k", "batch")


ROWS_FAIL = AuditCheck("rows of other lengths", False, "a row of length 3 shows")
UNTESTED = AuditCheck("low bits", None, "the outputs are whole numbers")


def make_audit(bound: float = 0.3, *checks: AuditCheck, **changes: Any) -> AuditResult:
    return AuditResult(
        name="<b>a service</b>",
        claim=Claim(1.0, 1e-6),
        releases=100,
        confidence=0.95,
        epsilon_lower=bound,
        checks=checks or (AuditCheck("low bits", True, "no pattern"),),
        auc=(0.6, 0.5, 0.7),
        tpr_at_1_percent=(0.02, 0.0, 0.1),
        fpr=np.array([0.0, 0.5, 1.0]),
        tpr=np.array([0.0, 0.6, 1.0]),
        edges=np.array([0.0, 1.0, 2.0]),
        counts_in=np.array([40.0, 60.0]),
        counts_out=np.array([60.0, 40.0]),
        trajectory=((50, 0.1), (100, bound)),
        detectable=2.0,
        statistic="linear",
        neighbours="one record replaced",
        seconds=1.0,
        **changes,
    )


def make_account(folder: Path) -> Any:
    ledger = ss.Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=10.0, delta=1e-6)
    account = ledger.account("letters", who="ada", why="pilot")
    ss.release_scores(ROWS, QUERY, ledger=account, **GAUSSIAN)
    ss.release_index(ROWS, changes="public", ids=IDS, ledger=ledger.account("faces"), epsilon=2.0)
    return account


def make_hits() -> Hits:
    return ss.PrivateSearch(ROWS, epsilon=20.0, mode="index").search(QUERY, k=5)


def make_noise() -> ss.CustomNoise:
    return ss.CustomNoise.tabulate(stats.logistic(scale=0.4), label="logistic")


def make_plan(source: Any = "public", **need: Any) -> plan.VerificationPlan:
    return plan.verification(IMPOSTOR, target_fmr=0.01, epsilon=4.0, delta=1e-6, source=source, **need)


OTHERS: dict[str, Any] = {
    "guarantee": lambda _: ss.release_scores(ROWS, QUERY, **GAUSSIAN).guarantee,
    "plan": lambda _: make_plan(),
    "plan with a ranking": lambda _: make_plan(genuine=GENUINE),
    "private plan": lambda _: make_plan("private"),
    "retrieval plan": lambda _: plan.retrieval(
        IMPOSTOR, GENUINE, records=1000, k=10, epsilon=8.0, delta=1e-6, source="public"
    ),
    "choice": lambda _: plan.choose("scores", epsilon=2.0, delta=1e-6),
    "audit": lambda _: make_audit(),
    "audit by bets": lambda _: make_audit(0.3, ROWS_FAIL, UNTESTED, calls=400, pairs=3),
    "ledger": lambda folder: make_account(folder).ledger,
    "account": make_account,
    "hits": lambda _: make_hits(),
    "custom noise": lambda _: make_noise(),
    "worth": lambda _: ss.release_index(ROWS, epsilon=20.0).worth(5),
}
OBJECTS: dict[str, Any] = {**{name: lambda _, make=make: make() for name, make in RELEASES.items()}, **OTHERS}

each_object = pytest.mark.parametrize("name", OBJECTS)
each_release = pytest.mark.parametrize("name", RELEASES)


def read_html(html: str) -> ET.Element:
    return ET.fromstring(html)


@each_object
class TestEveryObject:
    def test_html(self, name: str, tmp_path: Path) -> None:
        """A notebook shows one well-formed element, without a script or a link."""
        thing = OBJECTS[name](tmp_path)
        assert isinstance(thing, NotebookObject)
        root = read_html(thing._repr_html_())
        assert root.tag == "div"
        assert {element.tag for element in root.iter()} <= TAGS
        words = "".join(root.itertext())
        assert len(words) > 40
        assert "nan" not in words.lower().split()

    def test_repr_is_short(self, name: str, tmp_path: Path) -> None:
        text = repr(OBJECTS[name](tmp_path))
        assert "\n" not in text
        assert len(text) < 200 + len(str(tmp_path))
        assert "array(" not in text

    def test_plot(self, name: str, tmp_path: Path) -> None:
        """A plot is a figure with a title, which a notebook shows; pyplot is not used."""
        from matplotlib.figure import Figure

        figure = OBJECTS[name](tmp_path).plot()
        assert isinstance(figure, Figure)
        assert figure.axes[0].get_title()
        assert figure._repr_png_().startswith(b"\x89PNG")

    def test_plot_on_axes(self, name: str, tmp_path: Path) -> None:
        from matplotlib.figure import Figure

        figure = Figure()
        axes = figure.subplots()
        assert OBJECTS[name](tmp_path).plot(ax=axes) is figure
        assert axes.get_title()

    def test_frame(self, name: str, tmp_path: Path) -> None:
        import pandas as pd

        frame = OBJECTS[name](tmp_path).to_frame()
        assert isinstance(frame, pd.DataFrame)
        assert len(frame) > 0

    def test_frame_of_polars(self, name: str, tmp_path: Path) -> None:
        pl = pytest.importorskip("polars", reason="no polars: pip install 'scoreshield[frames]'")
        thing = OBJECTS[name](tmp_path)
        frame, other = thing.to_frame("polars"), thing.to_frame()
        assert isinstance(frame, pl.DataFrame)
        assert frame.shape == other.shape
        assert frame.columns == list(other.columns)

    def test_dir(self, name: str, tmp_path: Path) -> None:
        """Completion offers the public names of the object, all of which exist, and nothing else."""
        thing = OBJECTS[name](tmp_path)
        names = dir(thing)
        assert {"plot", "to_frame"} <= set(names)
        assert not [one for one in names if one.startswith("_")]
        assert not {"annotations", "Any", "np", "dataclass"} & set(names)
        assert all(hasattr(type(thing), one) or one in vars(thing) for one in names)


@each_release
def test_array_of_a_release(name: str) -> None:
    """An array of a release holds released values, never more; names alone are no array."""
    release = RELEASES[name]()
    if name in NAMES_ONLY:
        with pytest.raises(ss.InvalidInput, match=r"scores"):
            np.asarray(release)
        return
    array = np.asarray(release)
    released = {"row": "scores", "gram": "gram", "factored gram": "gram", "histogram": "counts"}
    released |= {"index": "vectors", "index version": "vectors"}
    if name == "refined matches":
        expected = np.clip(release.noisy, -1, 1)
    elif name == "codebook index":
        expected = release._list_vectors()
    else:
        expected = getattr(release, released.get(name, "scores"))
    assert np.array_equal(array, expected)
    single = np.asarray(release, dtype=np.float32)
    assert (single.dtype, single.shape) == (np.float32, array.shape)
    copy = np.array(release)
    copy += 1  # which the release does not see
    assert np.array_equal(np.asarray(release), array)


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "hits"])
def test_objects_without_an_array(name: str, tmp_path: Path) -> None:
    """NumPy makes no array of one object, and the error says what to use."""
    with pytest.raises(ss.InvalidInput, match=r"holds no array of numbers: use its attributes or to_frame\(\)"):
        np.asarray(OTHERS[name](tmp_path))


def test_short_names_of_ledgers(tmp_path: Path) -> None:
    """A ledger is named by its file, without the folders."""
    account = make_account(tmp_path)
    assert repr(account.ledger) == "<Ledger ledger.db: at most epsilon 10 at delta 1e-06 for each dataset>"
    assert repr(account) == "<Account of 'letters' in ledger.db: at most epsilon 10 at delta 1e-06>"


def test_size_of_a_batch() -> None:
    """A batch names its queries and records."""
    batch = RELEASES["batch"]()
    assert repr(batch).startswith("<BatchRelease of 3 queries and 40 records: (4, 0)-DP")
    assert "BatchRelease of 3 queries and 40 records" in batch._repr_html_()


def test_numbers_as_in_the_certificate(tmp_path: Path) -> None:
    """Epsilon and delta are written in a table as in a certificate."""
    guarantee = OTHERS["guarantee"](tmp_path)
    assert guarantee.list_facts()["Promise"] == "(4, 1e-06)-differential privacy"
    assert "(4, 1e-06)-differential privacy" in str(guarantee)
    assert "at most epsilon 10 at delta 1e-06" in make_account(tmp_path)._repr_html_()


def test_captions_are_not_as_narrow_as_their_table() -> None:
    """A caption stands before its table, because a caption element wraps at the width of one narrow column."""
    root = read_html(RELEASES["matches"]()._repr_html_())
    assert not list(root.iter("caption"))
    (place,) = [place for place, part in enumerate(root) if "named records" in (part.text or "")]
    assert [part.tag for part in root[place : place + 2]] == ["p", "table"]


def test_released_arrays_stay_frozen() -> None:
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(RELEASES["index"]())[0, 0] = 1.0


def test_no_clean_score_is_shown() -> None:
    """The table and the frame of a release hold its noisy scores, and none of the clean ones."""
    release = RELEASES["scores"]()
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    clean = unit @ QUERY / np.linalg.norm(QUERY)
    frame = release.to_frame()
    assert np.array_equal(frame["noisy"], release.noisy)
    assert np.array_equal(frame["score"], release.scores)
    shown = np.concatenate([frame["noisy"], frame["score"]])
    assert np.abs(shown[:, None] - clean).min() > 1e-9
    html = release._repr_html_()
    assert not [value for value in clean if f"{value:.4g}" in html]


def test_table_of_scores_is_ranked() -> None:
    release = RELEASES["scores"]()
    rows = read_html(release._repr_html_()).findall("table")[1].findall("tbody/tr")
    assert [int(row[0].text or "") for row in rows] == release.top_k(10).tolist()


def test_frame_of_several_queries() -> None:
    release = RELEASES["scores of several queries"]()
    frame = release.to_frame()
    assert np.array_equal(frame["noisy"].to_numpy().reshape(3, N), release.noisy)
    assert frame["query"].tolist() == np.repeat(range(3), N).tolist()
    assert frame["id"].tolist() == list(range(N)) * 3


def test_frame_of_levels() -> None:
    """The level of a record is the place of its value in the table."""
    release = RELEASES["levels"]()
    frame = release.to_frame()
    outputs = np.array(release.guarantee.noise.outputs)
    assert np.array_equal(outputs[frame["level"]], release.noisy)
    batch = RELEASES["batch"]()
    frame = batch.to_frame()
    assert np.array_equal(batch.cuts[frame["level"]], frame["score"])
    assert len(frame) == int((batch.names >= 0).sum())


def test_frame_of_named_records() -> None:
    top = RELEASES["top-k"]()
    assert top.to_frame()["id"].tolist() == top.indices.tolist()
    matches = RELEASES["refined matches"]()
    frame = matches.to_frame()
    assert frame["id"].tolist() == matches.indices.tolist()
    assert frame["noisy"].is_monotonic_decreasing
    scores = dict(zip(matches.candidates.tolist(), matches.noisy.tolist(), strict=True))
    assert [scores[one] for one in frame["id"]] == frame["noisy"].tolist()


def test_frame_of_an_index_has_ids() -> None:
    index = RELEASES["index version"]()
    frame = index.to_frame()
    assert frame["id"].tolist() == IDS
    assert np.array_equal(frame.drop(columns="id").to_numpy(), index.vectors)


def test_frame_of_a_ledger(tmp_path: Path) -> None:
    account = make_account(tmp_path)
    frame = account.ledger.to_frame()
    assert frame["id"].tolist() == [1, 2]
    assert frame["dataset"].tolist() == ["letters", "faces"]
    assert frame["epsilon"].tolist() == [4.0, 2.0]
    assert frame["who"][0] == "ada"
    assert frame["hash"].tolist() == [entry.hash for entry in account.ledger.entries()]
    assert account.to_frame()["id"].tolist() == [1]
    assert account.ledger.list_totals() == {"letters": pytest.approx(4.0), "faces": pytest.approx(2.0)}


def test_free_draws_cost_nothing(tmp_path: Path) -> None:
    """A frame shows what each draw of an index costs, not the total of the index."""
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=10.0, delta=1e-6)
    account = ledger.account("faces")
    first = ss.release_index(ROWS, changes="public", ids=IDS, ledger=account, epsilon=2.0)
    second = first.update(changed={IDS[0]: ROWS[1]}, ledger=account)
    second.update(changed={IDS[1]: ROWS[2]}, ledger=account)
    frame = account.to_frame()
    assert frame["kind"].tolist() == ["draw", "draw", "free-draw"]
    assert frame["epsilon"].tolist() == [2.0, 2.0, 0.0]


def test_ledger_that_is_gone(tmp_path: Path) -> None:
    """A notebook shows why a ledger cannot be read, and raises nothing."""
    account = make_account(tmp_path)
    for file in tmp_path.iterdir():
        file.unlink()
    for thing in (account, account.ledger):
        assert "Warning:" in "".join(read_html(thing._repr_html_()).itertext())


def test_empty_ledger(tmp_path: Path) -> None:
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=10.0, delta=1e-6)
    assert "0 entries" in ledger._repr_html_()
    assert len(ledger.to_frame()) == 0
    assert len(ledger.account("faces").to_frame()) == 0
    assert ledger.plot().axes[0].get_title() == "Spent, by dataset"


def test_frame_of_a_choice() -> None:
    choice = plan.choose("scores", epsilon=2.0, delta=1e-6)
    frame = choice.to_frame()
    assert frame["mechanism"].tolist() == [candidate.mechanism for candidate in choice.candidates]
    assert frame["utility"].tolist() == [candidate.utility for candidate in choice.candidates]
    assert frame["rank"].tolist() == list(range(1, len(frame) + 1))
    assert repr(choice).startswith(f"<Choice for scores: {choice.chosen.mechanism} is best of {len(frame)}, ")


def test_frame_of_a_plan() -> None:
    made = make_plan()
    frame = made.to_frame()
    assert frame["threshold"].iloc[0] == made.alternatives[0].threshold
    assert len(frame) == len(made.alternatives)
    assert repr(made) == (
        f"<VerificationPlan at (4, 1e-06)-DP: targets {'met' if made.met else 'not met'} by Gaussian noise of sd "
        f"{made.scale:.4g}, public scores>"
    )


def test_private_plan() -> None:
    """A plan from private scores draws no curve of clean scores, and says for whom it is."""
    figure = make_plan("private").plot()
    assert "clean" not in {line.get_label() for line in figure.axes[0].get_lines()}
    assert "for the curator only" in figure.axes[0].get_title()
    assert "clean" in {line.get_label() for line in make_plan().plot().axes[0].get_lines()}
    ranked = make_plan("private", genuine=GENUINE).plot()
    assert "for the curator only" in ranked.axes[0].get_title()
    assert "The scores behind this plan count as private" in make_plan("private")._repr_html_()


def test_frame_of_an_audit() -> None:
    frame = make_audit().to_frame()
    assert frame["check"].tolist() == ["epsilon", "low bits"]
    assert frame["passed"].tolist() == [True, True]
    broken = make_audit(bound=1.5)
    assert broken.to_frame()["result"].tolist() == ["FAILED", "nothing found"]
    assert repr(broken) == (
        "<AuditResult of <b>a service</b>: BROKEN, epsilon at least 1.5 where 1 was claimed, 100 releases>"
    )


def test_audit_that_only_other_rows_break() -> None:
    """The table shows what was not tested, and the plot says that its curve is of unit rows."""
    found = make_audit(0.3, ROWS_FAIL, UNTESTED, calls=400, pairs=3)
    frame = found.to_frame()
    assert frame["result"].tolist() == ["nothing found", "FAILED", "not tested"]
    assert frame["passed"].tolist() == [True, False, None]
    assert "not tested" in found._repr_html_()
    assert repr(found) == (
        "<AuditResult of <b>a service</b>: broken for rows of other lengths, epsilon at least 0.3 where 1 was claimed, "
        "400 outputs of 3 pairs of neighbouring collections>"
    )
    assert "on unit rows" in found.plot().axes[0].get_title()
    assert "on unit rows" not in make_audit().plot().axes[0].get_title()


def test_frame_of_a_guarantee() -> None:
    guarantee = RELEASES["scores"]().guarantee
    frame = guarantee.to_frame()
    assert np.array_equal(frame["tpr"], guarantee.tpr_at(frame["fpr"].to_numpy()))
    assert repr(guarantee) == (f"<Guarantee of scores 40: (4, 1e-06)-DP, {guarantee.verdict}, gaussian, exact sampler>")


def test_sentence_of_a_guarantee() -> None:
    """The sentence states the verdict of the certificate, and the seed of research mode."""
    guarantee = RELEASES["scores"]().guarantee
    assert guarantee.sentence.startswith(
        f"{guarantee.verdict.capitalize()}. An attacker who knows everything else and "
    )
    certificate = " ".join(str(guarantee).split())
    assert guarantee.sentence in certificate
    research = ss.release_scores(ROWS, QUERY, rng=1, **GAUSSIAN).guarantee
    assert research.sentence.startswith("Hides practically nothing, because it was made in research mode. ")
    assert ", except the seed, and must choose" in research.sentence
    people = ss.release_scores(ROWS, QUERY, adjacency=ss.Identity(np.arange(N) // 2), **GAUSSIAN).guarantee
    assert "two candidates for one identity" in people.sentence


def test_facts_are_rounded_up() -> None:
    guarantee = RELEASES["scores"]().guarantee
    stated = float(guarantee.list_facts()["Best attack"].split("at most ")[1].split(";")[0])
    assert guarantee.attack_advantage <= stated <= guarantee.attack_advantage + 2e-4


class TestHits:
    def test_iteration(self) -> None:
        hits = make_hits()
        assert hits.scores is not None
        assert list(hits) == [(one, score) for one, score in zip(hits.ids, hits.scores.tolist(), strict=True)]
        assert [one for one, _ in hits] == list(hits.ids)
        first = hits[0]
        assert first == Hit(hits.ids[0], float(hits.scores[0]))
        assert (first.id, first.score) == tuple(first)
        assert hits[-1].id == hits.ids[-1]
        with pytest.raises(IndexError):
            _ = hits[len(hits)]

    def test_fewer(self) -> None:
        hits = make_hits()
        fewer = hits[:2]
        assert isinstance(fewer, Hits)
        assert fewer.ids == hits.ids[:2]
        assert list(fewer) == list(hits)[:2]
        assert fewer.guarantee is hits.guarantee
        assert fewer.noisy is not None
        assert len(fewer.noisy) == 2

    def test_array_and_frame(self) -> None:
        hits = make_hits()
        assert np.array_equal(np.asarray(hits), hits.scores)
        assert hits.to_frame().columns.tolist() == ["id", "score", "noisy"]

    def test_names_alone(self) -> None:
        hits = Hits(("a", 2), None, None, None, 1)
        assert list(hits) == [("a", None), (2, None)]
        assert hits[:1].scores is None
        assert hits.to_frame().columns.tolist() == ["id"]
        assert "record" in hits._repr_html_()
        assert repr(hits) == "<Hits: 2 records, version 1, nothing was released>"
        for use in (np.asarray, Hits.plot):
            with pytest.raises(ss.InvalidInput, match="These hits have no scores"):
                use(hits)

    def test_mixed_ids_of_polars(self) -> None:
        pytest.importorskip("polars", reason="no polars: pip install 'scoreshield[frames]'")
        assert Hits(("a", 2), None, None, None, 1).to_frame("polars").shape == (2, 1)

    def test_no_hits(self) -> None:
        hits = Hits((), np.empty(0), np.empty(0), None, 1)
        assert list(hits) == []
        assert "Hits: 0 records" in hits._repr_html_()
        with pytest.raises(ss.InvalidInput, match="nothing was found"):
            hits.plot()


def test_hostile_texts_stay_text() -> None:
    """An id or a name that looks like HTML, or holds control characters, is shown as text."""
    hits = Hits(("<script>alert(1)</script>", "a\x00b\ud800"), np.zeros(2), np.zeros(2), None, 1, 0.1)
    html = hits._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    html.encode("utf-8")
    assert "<b>" not in make_audit()._repr_html_()
    hits.plot()._repr_png_()
    long = render_summary(ObjectSummary("x" * 10_000))
    assert len(long) < 1_000


def test_html_needs_no_extra() -> None:
    """The core install shows objects: neither Jinja2 nor Matplotlib nor pandas is loaded for it."""
    code = (
        "import sys, numpy as np, scoreshield as ss\n"
        "release = ss.release_scores(np.eye(3), [1.0, 0.0, 0.0], epsilon=1.0, delta=1e-6)\n"
        "assert release._repr_html_() and release.guarantee._repr_html_()\n"
        "found = {'jinja2', 'matplotlib', 'pandas', 'polars', 'torch', 'scoreshield.plan'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("library", "call", "extra"),
    [
        ("matplotlib", lambda release: release.plot(), "A plot needs the 'plots' extra: pip install"),
        ("pandas", lambda release: release.to_frame(), "A data frame of pandas needs the 'frames' extra: pip install"),
        ("polars", lambda release: release.to_frame("polars"), "of polars needs the 'frames' extra: pip install"),
    ],
)
def test_missing_library(library: str, call: Any, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release = RELEASES["scores"]()
    whole = builtins.__import__

    def fail(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == library:
            raise ImportError(name)
        return whole(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(ss.InvalidInput, match=extra):
        call(release)


def test_bad_arguments() -> None:
    release = RELEASES["scores"]()
    with pytest.raises(
        ss.InvalidInput, match=r"'library' parameter of ScoreRelease.to_frame must be one of 'pandas', "
    ):
        release.to_frame("dask")
    with pytest.raises(ss.InvalidInput, match="'ax' parameter of plot must be axes of Matplotlib"):
        release.plot(ax=3)


def test_release_is_no_input() -> None:
    """A release has an array, and is still no collection, store or sample of clean scores."""
    index, scores = RELEASES["index"](), RELEASES["scores"]()
    for use in (
        lambda: ss.release_scores(index, QUERY, **GAUSSIAN),
        lambda: ss.PrivateSearch(index, epsilon=1.0),
        lambda: plan.verification(scores, target_fmr=0.01, epsilon=4.0, delta=1e-6),
        lambda: ss.release_scores([scores, scores], QUERY, **GAUSSIAN),
        lambda: plan.verification(make_hits(), target_fmr=0.01, epsilon=4.0, delta=1e-6),
    ):
        with pytest.raises(ss.InvalidInput, match="parameter of"):
            use()


@pytest.mark.parametrize("room", ["attack", "audit", "decisions", "plan", "risk", "search", "stores", "tasks"])
def test_dir_of_subpackages(room: str) -> None:
    module = getattr(ss, room)
    assert dir(module) == sorted(module.__all__)
