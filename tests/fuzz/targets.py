"""What is fuzzed: for each kind of input valid ones, ways to damage them, and what must hold when one is read.

A case passes if reading ends in an error of ScoreShield with one printable line, or in a result that is sound.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from fuzz import mutations

import scoreshield as ss
from scoreshield import cli
from scoreshield._files import read_array
from scoreshield._rows import RowSource
from scoreshield.audit import journal
from scoreshield.audit.encoding import OutputReader
from scoreshield.bench.experiments import EXPERIMENTS, table
from scoreshield.bench.experiments.cells import COLUMNS
from scoreshield.bench.experiments.grid import read_yaml
from scoreshield.bench.rag.corpus import read_corpus, read_questions
from scoreshield.errors import ScoreShieldError
from scoreshield.search import PrivateSearch

GOLDEN = Path(__file__).parents[1] / "golden" / "releases"


class Unsound(AssertionError):
    """A damaged input was read, and the result is not what it should be."""


def check(sound: bool, what: str) -> None:
    if not sound:
        raise Unsound(what)


class Target(ABC):
    """One kind of input.

    Attributes:
        name: of the target, and of its folder in the corpus.
        weight: its share of the cases; slow ones have less.
    """

    name: str
    weight: float = 1.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seeds = self.valid()
        for seed in self.seeds:  # a target that rejects valid inputs would find nothing
            self.read(seed)

    @abstractmethod
    def valid(self) -> list[bytes]:
        """Inputs that are read without an error."""

    @abstractmethod
    def damaged(self, rng: random.Random, seed: bytes) -> bytes: ...

    @abstractmethod
    def read(self, data: bytes) -> None:
        """Read one input; raises ScoreShieldError where it is damaged."""

    def case(self, rng: random.Random) -> bytes:
        return self.damaged(rng, rng.choice(self.seeds))

    def run(self, data: bytes) -> None:
        """Read one input and let errors of ScoreShield pass, if they are one line."""
        try:
            self.read(data)
        except ScoreShieldError as error:
            text = str(error)
            check(bool(text) and text.isprintable(), f"the error is not one printable line: {text[:200]!r}")
            check(len(text) < 2000, "the error is longer than 2,000 characters")

    def written(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path


def check_release(release: Any, folder: Path) -> None:
    """A loaded release can be shown, saved and loaded again."""
    check(bool(str(release.guarantee)) and bool(repr(release)), "the release cannot be shown")
    release.save(folder / "again.npz")
    check(ss.load(folder / "again.npz") == release, "the release is another one when it is saved and loaded")


class Releases(Target):
    name = "releases"

    def valid(self) -> list[bytes]:
        # The table of the optimal release makes a case slow, and "scores-levels" has a smaller one.
        return [path.read_bytes() for path in sorted(GOLDEN.glob("*.npz")) if path.stem != "scores-optimal"]

    def damaged(self, rng: random.Random, seed: bytes) -> bytes:
        return mutations.of_zip(rng, seed)

    def read(self, data: bytes) -> None:
        check_release(ss.load(self.written("release.npz", data)), self.folder)


class Indexes(Target):
    """Both files of an index; a case is their lengths and contents."""

    name = "indexes"
    weight = 0.5

    def valid(self) -> list[bytes]:
        rows = np.random.default_rng(3).standard_normal((5, 4))
        PrivateSearch(rows, epsilon=8.0, rng=1).save(self.folder / "seed.npz")
        parts = [(self.folder / name).read_bytes() for name in ("seed.npz", "seed.ids.json")]
        return [self._joined(*parts)]

    def _joined(self, index: bytes, ids: bytes) -> bytes:
        return len(index).to_bytes(8, "little") + index + ids

    def _split(self, data: bytes) -> tuple[bytes, bytes]:
        size = int.from_bytes(data[:8], "little")
        return data[8 : 8 + size], data[8 + size :]

    def damaged(self, rng: random.Random, seed: bytes) -> bytes:
        index, ids = self._split(seed)
        if rng.random() < 0.3:
            return self._joined(mutations.of_zip(rng, index), ids)
        if rng.random() < 0.5:
            return self._joined(index, mutations.of_bytes(rng, ids))
        changed = mutations.dumped(rng, mutations.of_json(rng, json.loads(ids)))
        return self._joined(index, changed.encode("utf-8", "surrogatepass"))

    def read(self, data: bytes) -> None:
        index, ids = self._split(data)
        self.written("index.ids.json", ids)
        search = PrivateSearch.load(self.written("index.npz", index))
        found = search.search(np.ones(search.dimension) / 2, 2)
        check(len(found.ids) <= 2 and bool(str(search.guarantee)), "the index does not answer")


class Arrays(Target):
    """Embeddings; the ending of a case is its first byte."""

    name = "arrays"
    endings = (".npy", ".npz", ".parquet")

    def valid(self) -> list[bytes]:
        rows = np.random.default_rng(4).standard_normal((6, 5)).astype(np.float32)
        files = [io.BytesIO() for _ in range(4)]
        np.save(files[0], rows)
        np.savez(files[1], embeddings=rows, labels=np.arange(6))
        np.savez_compressed(files[2], query=rows[0])
        found = [b"\x00" + files[0].getvalue(), b"\x01" + files[1].getvalue(), b"\x01" + files[2].getvalue()]
        try:
            import pyarrow as pa
            import pyarrow.parquet as parquet
        except ImportError:
            return found
        for columns in ({"embedding": rows.tolist()}, {"a": rows[:, 0], "b": rows[:, 1], "t": list("abcdef")}):
            file = io.BytesIO()
            parquet.write_table(pa.table(columns), file)
            found.append(b"\x02" + file.getvalue())
        return found

    def damaged(self, rng: random.Random, seed: bytes) -> bytes:
        ways = (mutations.of_npy, mutations.of_zip, mutations.of_bytes)
        return seed[:1] + ways[seed[0]](rng, seed[1:])

    def read(self, data: bytes) -> None:
        ending = self.endings[data[0] % 3 if data else 0]
        path = self.written(f"rows{ending}", data[1:])
        for mapped in (False, True):
            array = read_array(path, mapped=mapped)
            if isinstance(array, RowSource):  # a .parquet file, which is read part by part
                array = np.asarray(array)
            check(isinstance(array, np.ndarray) and not array.dtype.hasobject, "no array of plain values")
            if array.ndim == 2 and array.dtype.kind == "f" and array.size:
                with contextlib.suppress(ScoreShieldError):
                    ss.release_scores(array, np.ones(array.shape[1]), epsilon=1.0, mechanism="laplace", rng=1)
            del array


class Ledgers(Target):
    name = "ledgers"
    weight = 0.3

    def valid(self) -> list[bytes]:
        path = self.folder / "seed.db"
        ledger = ss.Ledger.create(f"sqlite:///{path}", epsilon=50.0, delta=1e-6)
        rows = np.eye(4)
        for number, name in enumerate(("first", "second", "first")):
            account = ledger.account(name, who="someone", why="a reason")
            ss.release_scores(rows, rows[0], epsilon=1.0 + number, mechanism="laplace", ledger=account)
        self.facts = self._facts(ledger)
        del ledger
        return [path.read_bytes()]

    def _facts(self, ledger: Any) -> tuple[Any, ...]:
        spent = {name: ledger.spent_on(name) for name in sorted(ledger.datasets())}
        return ledger.epsilon, ledger.delta, ledger.head(), [entry.to_dict() for entry in ledger.entries()], spent

    def damaged(self, rng: random.Random, seed: bytes) -> bytes:
        return mutations.of_tables(rng, seed, self.folder)

    def read(self, data: bytes) -> None:
        for extra in self.folder.glob("ledger.db*"):
            extra.unlink()
        ledger = ss.Ledger.open(f"sqlite:///{self.written('ledger.db', data)}")
        if ledger.verify(head=getattr(self, "facts", [None] * 3)[2]):
            check(not hasattr(self, "facts") or self._facts(ledger) == self.facts, "verified, and not what it was")


class Journals(Target):
    """The settings and the releases of an audit, with a line between them that neither holds."""

    name = "journals"
    between = b"\n=====\n"
    asked = {"target": "t", "claim": {"epsilon": 1.0}}  # noqa: RUF012

    def valid(self) -> list[bytes]:
        rng, square = np.random.default_rng(5), np.random.default_rng(6).random((9, 9))
        outputs = {"small": rng.random(4), "large": rng.random(100), "square": square + square.T, "set": {1, 3}}
        outputs |= {"hits": [{"id": "a", "score": (0.5, np.nan)}, {"id": 10**30, "score": None}], "text": "a 0.5"}
        outputs |= {"object": {"path": Path("a"), "types": np.array(["a", "b"]), "set": {"x"}, "date": range(3)}}
        found = []
        for name, made in outputs.items():
            folder = self.folder / name
            with journal.open_journal(folder, self.asked, lambda: 7) as (kept, _):
                kept.record(lambda _, made=made: made)(np.eye(9)[:, :4])
                kept.record(lambda _: 1 / 0)(np.eye(9)[:, 1:5])
                kept.note_repeated(2)
            found.append(
                self.between.join((folder / part).read_bytes() for part in (journal.SETTINGS, journal.RELEASES))
            )
        return found

    def damaged(self, rng: random.Random, seed: bytes) -> bytes:
        settings, lines = seed.split(self.between)
        if rng.random() < 0.3:
            return self.between.join((mutations.of_lines(rng, settings.replace(b"\n", b" ")), lines))
        damage = rng.choice((mutations.of_bytes, mutations.of_lines))
        return self.between.join((settings, damage(rng, lines)))

    def read(self, data: bytes) -> None:
        settings, _, lines = data.partition(self.between)
        folder = self.folder / "journal"
        folder.mkdir(exist_ok=True)
        for name, content in ((journal.SETTINGS, settings), (journal.RELEASES, lines)):
            (folder / name).write_bytes(content)
        with journal.open_journal(folder, self.asked, lambda: 7) as (kept, releases):
            check(isinstance(releases, int) and releases > 0, "no number of releases")
            output = kept.record(lambda rows: np.zeros(len(rows)))(np.eye(9)[:, :4])
            OutputReader([output], 9).read([output, 1.5])
            OutputReader([output, None], 9).read([output, [output, output]])


class Grids(Target):
    name = "grids"
    weight = 0.7

    def valid(self) -> list[bytes]:
        from importlib.resources import files

        texts = {name: files("scoreshield.bench.experiments").joinpath("grids", f"{name}.yaml") for name in EXPERIMENTS}
        return [text.read_bytes() for text in texts.values()]

    def damaged(self, rng: random.Random, seed: bytes) -> bytes:
        return rng.choice((mutations.of_bytes, mutations.of_text, mutations.of_text))(rng, seed)

    def read(self, data: bytes) -> None:
        changes = read_yaml(self.written("grid.yaml", data))
        name = changes.get("experiment")
        experiment = EXPERIMENTS[name if isinstance(name, str) and name in EXPERIMENTS else "noise"]
        for quick in (False, True):
            json.dumps(experiment.make_grid(changes, quick=quick, source="grid.yaml").to_dict(), allow_nan=False)


class Tables(Target):
    """Tables of results, and pages and questions in JSON lines, by the first byte."""

    name = "tables"

    def valid(self) -> list[bytes]:
        row = dict.fromkeys(COLUMNS) | {"experiment": "noise", "n": 3, "value": 0.5, "method": "=1"}
        table.write_results(self.folder, [row, row])
        page = {"title": "A title", "text": "Some text of the page."}
        question = {"id": 1, "question": "What?", "answer": "That.", "documents": ["A title"]}
        frames = "Prompt\tAnswer\twiki_links\nWhat?\tThat.\t['https://en.wikipedia.org/wiki/A_title']\n"
        return [
            b"\x00" + (self.folder / "results.csv").read_bytes(),
            b"\x01" + json.dumps(page).encode() + b"\n" + json.dumps(page | {"title": "B"}).encode(),
            b"\x02" + json.dumps(question).encode() + b"\n",
            b"\x03" + frames.encode(),
        ]

    def damaged(self, rng: random.Random, seed: bytes) -> bytes:
        lines = seed[0] in (1, 2) and rng.random() < 0.6
        return seed[:1] + (mutations.of_lines if lines else mutations.of_bytes)(rng, seed[1:])

    def read(self, data: bytes) -> None:
        kind = data[0] % 4 if data else 0
        path = self.written(("results.csv", "pages.jsonl", "questions.jsonl", "test.tsv")[kind], data[1:])
        (table.read_results, read_corpus, read_questions, read_questions)[kind](path)


_NUMBERS = (
    "1", "0", "-1", "1e-6", "1e999", "nan", "inf", "-inf", "1e-320", "9" * 400, "0x10", "1_0", "٣", "", " ", "--",
)  # fmt: skip
_WORDS = (
    "x",
    "",
    "\x1b[2J",
    "\u202e",
    "rows.npy",
    "rows.npz:embeddings",
    "query.npy",
    "none.npy",
    ".",
    "/",
    "/dev/null",
    "-",
)
_OPTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("release", "scores", "rows.npy"): ("--query", "--epsilon", "--delta", "--output", "--mechanism", "--score-range",
                                        "--top-k", "--threshold", "--labels", "--norm", "--array", "--seed", "--json"),
    ("release", "row", "rows.npy"): ("--index", "--epsilon", "--delta", "--output", "--labels", "--centroids"),
    ("release", "gram", "rows.npy"): ("--epsilon", "--delta", "--output", "--projection", "--denoise", "--gram-radius"),
    ("release", "matches", "rows.npy"): ("--query", "--threshold", "--epsilon", "--output", "--refine"),
    ("release", "top-k", "rows.npy"): ("--query", "--k", "--epsilon", "--output", "--mechanism"),
    ("release", "batch", "rows.npy"): ("--queries", "--k", "--epsilon", "--output", "--names", "--level"),
    ("release", "histogram", "rows.npy"): ("--query", "--bins", "--epsilon", "--output", "--target-fmr", "--delta"),
    ("release", "index", "rows.npy"): ("--epsilon", "--output", "--delta", "--components", "--reduction"),
    ("calibrate",): ("--epsilon", "--delta", "--sensitivity", "--method", "--json"),
    ("ledger", "status", "sqlite:///books.db"): ("--dataset", "--json"),
    ("ledger", "verify", "sqlite:///books.db"): ("--head", "--json"),
    ("ledger", "list", "sqlite:///none.db"): ("--dataset",),
    ("bench", "noise", "--show-grid"): ("--grid", "--out", "--workers", "--quick"),
    ("audit", "rows.npy"): ("--epsilon", "--delta", "--adjacency", "--without", "--noise", "--releases", "--minutes"),
    ("audit", "none:function"): ("--epsilon", "--delta", "--adjacency", "--timeout", "--records", "--dimensions",
                                 "--confidence", "--rows", "--query"),
    ("plan", "--delta", "1e-6"): ("--need", "--impostor", "--target-fmr", "--records", "--k", "--max-advantage",
                                  "--at-fpr", "--html", "--endpoint", "--embeddings", "--labels"),
}  # fmt: skip
_GOOD = {
    "--query": "query.npy", "--queries": "query.npy",
    "--epsilon": "5", "--delta": "1e-6", "--output": "out.npz", "--k": "2", "--index": "1",
    "--threshold": "0.1", "--sensitivity": "2", "--adjacency": "replace", "--labels": "labels.npy",
}  # fmt: skip
_EXTRA = ("--force", "--help", "--unknown")
_FLAGS = ("--json", "--centroids", "--quick")


class Commands(Target):
    """Arguments of the command line, one a line: exit code 0 or 2, and with 2 one line on standard error."""

    name = "commands"
    weight = 0.12

    def valid(self) -> list[bytes]:
        rng = np.random.default_rng(7)
        np.save(self.folder / "rows.npy", rng.standard_normal((6, 4)))
        np.save(self.folder / "query.npy", rng.standard_normal(4))
        np.save(self.folder / "labels.npy", np.arange(6) // 2)
        np.savez(self.folder / "rows.npz", embeddings=rng.standard_normal((6, 4)))
        ss.Ledger.create(f"sqlite:///{self.folder / 'books.db'}", epsilon=5.0, delta=1e-6)
        return [self._line(["calibrate", "--epsilon", "1", "--delta", "1e-6", "--sensitivity", "2"])]

    def _line(self, words: list[str]) -> bytes:
        return "\n".join(words).encode("utf-8", "surrogatepass")

    def damaged(self, rng: random.Random, seed: bytes) -> bytes:  # noqa: ARG002
        command = rng.choice(sorted(_OPTIONS))
        words = list(command)
        for option in _OPTIONS[command]:
            if rng.random() < (0.9 if option in _GOOD else 0.25):
                words += [option]
                if option not in _FLAGS and rng.random() < 0.97:
                    good = option in _GOOD and rng.random() < 0.7
                    words += [_GOOD[option] if good else rng.choice(_NUMBERS + _WORDS)]
        if rng.random() < 0.15:
            words.insert(rng.randrange(len(words) + 1), rng.choice(_NUMBERS + _WORDS + _EXTRA))
        return self._line(words)

    def read(self, data: bytes) -> None:
        words = data.decode("utf-8", "replace").replace("\x00", "").split("\n")
        out, err, argv = io.StringIO(), io.StringIO(), sys.argv
        for path in self.folder.glob("out.*"):
            path.unlink()
        code: Any = None
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            sys.argv = ["scoreshield", *words]
            try:
                cli.main()
            except SystemExit as error:
                code = error.code
            finally:
                sys.argv = argv
        said = err.getvalue()
        broken = code in (1, 3) and words[0] == "audit"
        check(code == 0 or code == 2 or broken, f"exit code {code}: {said[:300]!r}")
        check(code != 2 or (said.count("\n") == 1 and said.rstrip("\n").isprintable()), f"not one line: {said[:300]!r}")
        check("\x1b[2J" not in out.getvalue() + said, "a control character went to the terminal")


TARGETS: tuple[type[Target], ...] = (Releases, Indexes, Arrays, Ledgers, Journals, Grids, Tables, Commands)
