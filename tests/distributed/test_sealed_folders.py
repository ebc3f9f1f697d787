"""What others see of a begun release, and what they can do to it by writing into its folder."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_support import (
    QUERY,
    RELEASE,
    SECRET,
    Killed,
    act_after,
    fail_after,
    fail_at_write,
    lose_encrypted_blocks,
    make_account,
    read_folder,
    read_key_rows,
    release,
    use_same_key,
    write_collection,
)

import scoreshield.distributed as sd
from scoreshield import cli
from scoreshield.distributed import blocks, driver, storage
from scoreshield.distributed.key_folder import share_in_folder
from scoreshield.distributed.key_table import ReleaseKeyTable
from scoreshield.distributed.keys import share_in_process
from scoreshield.distributed.manifest import Manifest
from scoreshield.distributed.parts import read_sealed_part, write_part
from scoreshield.distributed.sources.opening import describe_source
from scoreshield.errors import InvalidInput, LedgerError
from scoreshield.privacy.ledger.accounts import PendingCharge

#: What a keyed hash, an id, or the entry of a ledger looks like.
_HIDDEN = re.compile(r"([0-9]+:)?([0-9a-f]{64}|[0-9a-f]{32})")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A collection that a test may change."""
    write_collection(tmp_path / "vectors", (100, 50))
    return tmp_path / "vectors"


@pytest.fixture
def account(tmp_path: Path) -> Any:
    return make_account(tmp_path)


def make_other_account(tmp_path: Path) -> Any:
    (tmp_path / "other ledger").mkdir()
    return make_account(tmp_path / "other ledger")


def begin(source: Path, to: Path, account: Any, *, is_charged: bool) -> None:
    """Begin a release whose driver is killed after its manifest, or after its charge."""
    with pytest.MonkeyPatch.context() as patch:
        fail_at_write(patch, "parts/" if is_charged else "manifest.json", before=is_charged)
        with pytest.raises(Killed):
            release(source, to, ledger=account)
    assert len(account.entries()) == is_charged


def list_differences(one: Any, other: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """List the places where two values of JSON differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for name in one:
            yield from list_differences(one[name], other[name], f"{place}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number in range(len(one)):
            yield from list_differences(one[number], other[number], f"{place}[]")
    elif one != other:
        yield place, one, other


def is_hidden(one: Any, other: Any) -> bool:
    """Whether two values are keyed hashes, or ids, of one length."""
    return all(isinstance(value, str) and _HIDDEN.fullmatch(value) for value in (one, other)) and len(one) == len(other)


class TestSeals:
    def test_nothing_shows_a_changed_record(self, tmp_path: Path) -> None:
        """Of two collections that differ in one record, everything that is not a score differs in keyed hashes."""
        parquet = pytest.importorskip("pyarrow.parquet", reason="the 'parquet' extra is not installed")
        import pyarrow as pa

        rows = np.random.default_rng(3).standard_normal((200, 4)).astype(np.float32)
        path, seen, facts = tmp_path / "vectors" / "0.parquet", [], []
        path.parent.mkdir()
        for number, record in enumerate((rows[7], np.zeros(4, np.float32))):
            rows[7] = record
            column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 4)
            parquet.write_table(pa.table({"vector": column}), path)
            folder = tmp_path / str(number)
            folder.mkdir()
            account = make_account(folder)
            release(path.parent, folder / "out", ledger=account)
            read = read_folder(folder / "out")
            final = json.loads(read["release.json"])
            seen.append(
                {
                    "manifest": json.loads(read["manifest.json"]),
                    "certificate": re.split(r"[\s,;().]+", read["certificate.txt"].decode()),
                    "promise": final["guarantee"],
                    "digest": final["manifest"],
                    "entry": json.loads(account.entries()[0].guarantee),
                }
            )
            facts.append(json.loads(json.dumps(describe_source(path.parent).to_dict())))
        differences = list(list_differences(*seen))
        assert [one for one in differences if not is_hidden(*one[1:])] == []
        assert {place for place, *_ in differences} >= {
            ".manifest.release",
            ".manifest.snapshot",
            ".manifest.source.files[].state",
            ".manifest.guarantee.details.snapshot",
            ".entry.details.snapshot",
            ".certificate[]",
        }
        # The near miss: what is not sealed differs in numbers and in times.
        plain = {place for place, *values in list_differences(*facts) if not is_hidden(*values)}
        assert plain == {".files[].size", ".files[].state"}

    def test_one_state_has_two_seals(self, source: Path, tmp_path: Path) -> None:
        """No one without the key can compare the files of two releases. With one key the seals are equal."""
        states = []
        for number, is_same in enumerate((False, False, True, True)):
            with pytest.MonkeyPatch.context() as patch:
                if is_same:
                    use_same_key(patch)
                manifest = release(source, tmp_path / str(number)).manifest
            assert [file.size for file in manifest.source.files] == [0, 0]
            states.append((manifest.snapshot, *(file.state for file in manifest.source.files)))
        assert len({*states[0], *states[1], *states[2]}) == 9
        assert states[2] == states[3]


class TestCopies:
    @pytest.mark.parametrize("is_charged", [True, False])
    def test_begun_release(self, source: Path, tmp_path: Path, account: Any, is_charged: bool) -> None:
        """A copy at another address would be a second view under one charge, or under none."""
        begin(source, tmp_path / "out", account, is_charged=is_charged)
        shutil.copytree(tmp_path / "out", tmp_path / "copy")
        before, rows = read_folder(tmp_path / "copy"), read_key_rows(account)
        with pytest.raises(InvalidInput, match="begun in another folder, and a key is for one folder"):
            release(source, tmp_path / "copy", ledger=account)
        assert read_folder(tmp_path / "copy") == before
        assert read_key_rows(account) == rows
        assert len(account.entries()) == is_charged
        release(source, tmp_path / "out", ledger=account)
        assert len(account.entries()) == 1

    def test_whole_release(self, source: Path, tmp_path: Path, account: Any) -> None:
        """A copy of a whole release opens, and no ledger answers for it."""
        made = release(source, tmp_path / "out", ledger=account)
        shutil.copytree(tmp_path / "out", tmp_path / "copy")
        with pytest.raises(InvalidInput, match="begun in another folder"):
            release(source, tmp_path / "copy", ledger=account)
        with pytest.raises(InvalidInput, match="was not charged to this ledger, was copied, or"):
            release(source, tmp_path / "copy", ledger=make_other_account(tmp_path))
        assert np.array_equal(sd.open_release(tmp_path / "copy").scores(), made.scores())


class TestFailedChecks:
    @pytest.mark.parametrize("who", ["no ledger", "another ledger", "the ledger"])
    def test_after_the_charge(self, source: Path, tmp_path: Path, account: Any, who: str) -> None:
        """A driver whose check would fail leaves the release that was charged, and its key."""
        begin(source, tmp_path / "out", account, is_charged=True)
        vectors = np.load(source / "1.npy")
        vectors[3] = np.nan
        np.save(source / "1.npy", vectors)
        before, rows = read_folder(tmp_path / "out"), read_key_rows(account)
        second = {
            "no ledger": lambda: None,
            "another ledger": lambda: make_other_account(tmp_path),
            "the ledger": lambda: account,
        }[who]()
        sentence = "of files that changed since" if second is account else "whose key is lost"
        with pytest.raises(InvalidInput, match=sentence):
            release(source, tmp_path / "out", ledger=second)
        assert read_folder(tmp_path / "out") == before
        assert read_key_rows(account) == rows
        assert rows[0]["secret"] is not None

    @pytest.mark.parametrize("state", ["whole", "charged", "charged, blocks lost"])
    def test_while_another_driver_charges(self, source: Path, tmp_path: Path, account: Any, state: str) -> None:
        """Two drivers of one ledger: the second charges, and then the check of the first fails."""
        is_whole = state == "whole"
        to, left = tmp_path / "out", []

        def charge_and_change(*_: Any) -> None:
            if left:
                return
            if is_whole:
                release(source, to, ledger=account)
            else:
                with pytest.MonkeyPatch.context() as patch:
                    fail_at_write(patch, "parts/", before=True)
                    with pytest.raises(Killed):
                        release(source, to, ledger=account)
            if state == "charged, blocks lost":
                lose_encrypted_blocks(to)
            left.append((read_folder(to), read_key_rows(account)))
            (source / "1.npy").touch()

        if state == "charged, blocks lost":
            with pytest.raises(InvalidInput, match="changed since the release began"):
                release(source, to, ledger=account, progress=charge_and_change)
        else:  # the release is the one that was asked for: it was computed before the file changed
            release(source, to, ledger=account, progress=charge_and_change)
        if state != "charged":
            assert [(read_folder(to), read_key_rows(account))] == left
        assert left[0][1][0]["entry"]
        assert len(account.entries()) == 1

    def test_the_row_is_given_up_once(self, source: Path, tmp_path: Path, account: Any) -> None:
        """A driver that finds its release given up makes another one, and charges once."""
        to, done = tmp_path / "out", []

        def give_up(*_: Any) -> None:
            if not done:
                done.append(1)
                manifest = Manifest.from_bytes((to / "manifest.json").read_bytes())
                assert ReleaseKeyTable(account.ledger).drop(manifest.release)
                (to / "manifest.json").unlink()
                done.append(manifest.release)

        # The manifest is read by the first task, and kept in its process.
        found = release(source, to, ledger=account, progress=give_up)
        assert found.manifest.release not in done
        assert len(account.entries()) == 1
        assert [row["release"] for row in read_key_rows(account)] == [found.manifest.release]


class TestForgedFiles:
    def forge(self, to: Path, name: str, source: Path, tmp_path: Path, account: Any) -> None:
        """Plant a last file in the folder of a begun release."""
        written = (to / "manifest.json").read_bytes()
        manifest = Manifest.from_bytes(written)
        digest = storage.compute_digest(written)
        parts = [{"size": 1, "sha256": "0" * 64}] * manifest.count_parts
        content: dict[str, Any] = {"format": 2, "manifest": digest, "parts": parts, "tie_break": 1, "seal": "0" * 64}
        provenance = {"dataset": "people", "entry": read_key_rows(account)[0]["entry"] or f"1:{'1' * 64}"}
        right = content | {"guarantee": manifest.guarantee | {"provenance": provenance}}
        if name == "from another ledger":
            release(source, tmp_path / "elsewhere", ledger=make_other_account(tmp_path))
            shutil.rmtree(to)
            shutil.copytree(tmp_path / "elsewhere", to)
            return
        (to / "release.json").write_text(
            {
                "empty": "{}",
                "list": "[]",
                "no promise": json.dumps(content),
                "text": json.dumps(content | {"guarantee": "x"}),
                "no provenance": json.dumps(content | {"guarantee": manifest.guarantee}),
                "odd provenance": json.dumps(content | {"guarantee": manifest.guarantee | {"provenance": "x"}}),
                "other entry": json.dumps(
                    content | {"guarantee": manifest.guarantee | {"provenance": {"entry": f"1:{'0' * 64}"}}}
                ),
                "right entry": json.dumps(right),
                "right entry, no seal": json.dumps({key: value for key, value in right.items() if key != "seal"}),
                "right entry, earlier format": json.dumps(right | {"format": 1}),
            }[name]
        )

    @pytest.mark.parametrize(
        "name",
        [
            "empty",
            "list",
            "no promise",
            "text",
            "no provenance",
            "odd provenance",
            "other entry",
            "right entry",
            "right entry, no seal",
            "right entry, earlier format",
            "from another ledger",
        ],
    )
    @pytest.mark.parametrize("is_charged", [True, False])
    def test_last_file(self, source: Path, tmp_path: Path, account: Any, name: str, is_charged: bool) -> None:
        """A planted last file neither ends the key, nor is taken for the release that was charged."""
        to = tmp_path / "out"
        begin(source, to, account, is_charged=is_charged)
        begun, rows = (to / "manifest.json").read_bytes(), read_key_rows(account)
        self.forge(to, name, source, tmp_path, account)
        for _ in range(2):
            with pytest.raises(
                InvalidInput, match=r"is damaged or of a later|not charged to this ledger|did not write"
            ):
                release(source, to, ledger=account)
        release(source, tmp_path / "another", ledger=account)  # which looks for keys to end
        assert [row for row in read_key_rows(account) if row["folder"] == str(to)] == rows
        assert rows[0]["secret"] is not None
        shutil.rmtree(to)
        to.mkdir()
        (to / "manifest.json").write_bytes(begun)
        assert len(release(source, to, ledger=account).scores()) == 150
        assert len(account.entries()) == 2

    @pytest.mark.parametrize(
        "name", ["empty", "list", "right entry", "right entry, no seal", "right entry, earlier format"]
    )
    def test_last_file_that_is_replaced_after_its_check(
        self, source: Path, tmp_path: Path, account: Any, name: str
    ) -> None:
        """The ledger notes no file that was planted between the check of the last file and the end of the key."""
        to, path, kept = tmp_path / "out", tmp_path / "out" / "release.json", []

        def plant() -> None:
            kept.append(path.read_bytes())
            self.forge(to, name, source, tmp_path, account)

        with pytest.MonkeyPatch.context() as patch:
            act_after(patch, driver.Driver, "_repair_certificate", plant)
            with pytest.raises(InvalidInput, match="did not write"):
                release(source, to, ledger=account)
        assert read_key_rows(account)[0]["secret"] is not None
        path.write_bytes(kept[0])
        release(source, to, ledger=account).check_charge(account.ledger)
        assert read_key_rows(account)[0]["secret"] is None
        assert len(account.entries()) == 1

    def test_last_file_with_another_manifest(self, source: Path, tmp_path: Path, account: Any) -> None:
        """The entry alone does not make a release the charged one: its manifest is that of the charge."""
        to = tmp_path / "out"
        release(source, to, ledger=account)
        final = json.loads((to / "release.json").read_bytes())
        manifest = json.loads((to / "manifest.json").read_bytes())
        content = json.dumps(manifest, indent=1).encode()
        (to / "manifest.json").write_bytes(content)
        (to / "release.json").write_text(json.dumps(final | {"manifest": storage.compute_digest(content)}))
        with pytest.raises(InvalidInput, match="was not charged to this ledger"):
            release(source, to, ledger=account)

    @pytest.mark.parametrize(
        "what", ["itself", "random bytes", "other values", "another number", "another key", "no seal"]
    )
    def test_part(self, source: Path, tmp_path: Path, account: Any, what: str) -> None:
        """A file in the place of a part is not adopted. When it is removed, the release goes on."""
        to, path = tmp_path / "out", tmp_path / "out" / "parts" / "part-00000000.parquet"
        with pytest.MonkeyPatch.context() as patch:
            use_same_key(patch)
            made = release(source, tmp_path / "made", ledger=make_other_account(tmp_path))
        with pytest.MonkeyPatch.context() as patch:
            use_same_key(patch)
            begin(source, to, account, is_charged=True)
        columns, seal = read_sealed_part(made._read_file(0))

        def write(number: int, secret: bytes) -> bytes:
            with share_in_process(RELEASE, secret) as handle:
                return blocks._write_sealed(columns, handle, number)

        assert write(0, SECRET) == made._read_file(0)
        planted = {
            "itself": made._read_file(0),
            "random bytes": b"PAR1 x",
            "other values": write_part(columns | {"score": columns["score"] + 2.0**-20}, seal),
            "another number": write(1, SECRET),
            "another key": write(0, SECRET[::-1]),
            "no seal": write_part(columns, ""),
        }[what]
        path.parent.mkdir()
        path.write_bytes(planted)
        if what != "itself":
            for _ in range(2):
                with pytest.raises(InvalidInput, match=r"part-00000000.parquet was not written by this release, or is"):
                    release(source, to, ledger=account)
            path.unlink()
        assert np.array_equal(release(source, to, ledger=account).scores(), made.scores())
        assert len(account.entries()) == 1

    @pytest.mark.parametrize("what", ["nothing", "score", "counts", "certificate", "manifest", "copied files"])
    def test_verify(
        self, source: Path, tmp_path: Path, account: Any, what: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`verify --ledger` finds a whole set of files that someone without the ledger wrote."""
        to = tmp_path / "out"
        if what == "counts":
            sd.release_histogram(source, QUERY, to=to, epsilon=1.0, bins=4, ledger=account)
        else:
            release(source, to, ledger=account)
        final = json.loads((to / "release.json").read_bytes())
        if what == "score":
            columns, seal = read_sealed_part((to / "parts" / "part-00000000.parquet").read_bytes())
            content = write_part(columns | {"score": columns["score"] + 1.0}, seal)
            (to / "parts" / "part-00000000.parquet").write_bytes(content)
            final["parts"][0] = {"size": len(content), "sha256": storage.compute_digest(content)}
        elif what == "counts":
            final["counts"] = [7, 7, 7, 7]
        elif what == "certificate":
            (to / "certificate.txt").write_text((to / "certificate.txt").read_text().replace("2", "1"))
        elif what == "manifest":
            content = (to / "manifest.json").read_bytes().replace(b'"block_rows":65536', b'"block_rows":131072')
            (to / "manifest.json").write_bytes(content)
            final["manifest"] = storage.compute_digest(content)
        elif what == "copied files":  # of the same request, charged elsewhere
            provenance = final["guarantee"]["provenance"]
            shutil.rmtree(to)
            release(source, to, ledger=make_other_account(tmp_path))
            final = json.loads((to / "release.json").read_bytes())
            final["guarantee"]["provenance"] = provenance
        if what != "nothing":
            (to / "release.json").write_text(json.dumps(final))
        if what not in ("nothing", "certificate"):  # a forger writes all files that can be computed
            (to / "certificate.txt").write_text(str(sd.open_release(to).guarantee))
        address = f"sqlite:///{tmp_path}/ledger.db"
        for options, is_ok in (([], what != "certificate"), (["--ledger", address], what == "nothing")):
            monkeypatch.setattr(sys, "argv", ["scoreshield", "verify", str(to), *options, "--json"])
            with pytest.raises(SystemExit):
                cli.main()
            assert json.loads(capsys.readouterr().out)["ok"] is is_ok

    def test_file_among_the_parts(self, source: Path, tmp_path: Path, account: Any) -> None:
        """Other programs read all files of the folder of parts, so that one more is found."""
        made = release(source, tmp_path / "out", ledger=account)
        parts = tmp_path / "out" / "parts"
        for name in (".part-00000000.parquet.0.part", "_SUCCESS"):  # which other programs leave out
            (parts / name).write_bytes(b"x")
        made.check_parts()
        for name in ("part-00000001.parquet", "more/part-00000000.parquet"):
            (parts / name).parent.mkdir(exist_ok=True)
            (parts / name).write_bytes((parts / "part-00000000.parquet").read_bytes())
            with pytest.raises(InvalidInput, match=f"parts/{name} is no part of the release"):
                made.check_parts()
            (parts / name).unlink()
        made.check_parts()

    @pytest.mark.parametrize("is_charged", [True, False])
    @pytest.mark.parametrize("how", ["spaces", "state", "snapshot", "size", "rows", "epsilon"])
    def test_manifest(self, source: Path, tmp_path: Path, account: Any, how: str, is_charged: bool) -> None:
        """A manifest that is not what the key seals, to the byte, is rejected before a charge."""
        begin(source, tmp_path / "out", account, is_charged=is_charged)
        path = tmp_path / "out" / "manifest.json"
        written = path.read_bytes()
        others = {name: content for name, content in read_folder(path.parent).items() if name != path.name}
        data = json.loads(written)
        if how == "state":
            data["source"]["files"][1]["state"] = data["source"]["files"][0]["state"]
        elif how == "snapshot":
            data["snapshot"] = "0" * 64
        elif how == "size":
            data["source"]["files"][1]["size"] = 1
        elif how == "rows":
            data["source"]["files"][1]["rows"] = 40
        elif how == "epsilon":
            data["guarantee"]["epsilon"] = 1.0
        path.write_text(json.dumps(data))
        with pytest.raises(InvalidInput, match="begun with other arguments, or of files that changed since"):
            release(source, path.parent, ledger=account)
        assert len(account.entries()) == is_charged
        assert read_folder(path.parent) == others | {path.name: path.read_bytes()}
        assert not any(name.startswith("parts/") for name in others)
        path.write_bytes(written)
        release(source, path.parent, ledger=account)
        assert len(account.entries()) == 1

    def test_planted_manifest(self, source: Path, tmp_path: Path, account: Any) -> None:
        """A manifest under a key that another one chose draws nothing, and is not charged."""
        with pytest.MonkeyPatch.context() as patch:
            use_same_key(patch)
            planted = release(source, tmp_path / "planned").manifest.to_bytes()
        assert Manifest.from_bytes(planted).release == RELEASE
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "manifest.json").write_bytes(planted)
        with pytest.raises(InvalidInput, match="whose key is lost"):
            release(source, tmp_path / "out", ledger=account)
        assert account.entries() == []
        assert read_key_rows(account) == []
        assert read_folder(tmp_path / "out") == {"manifest.json": planted}


class TestKeysThatWereLeft:
    def test_key_folder_of_a_killed_driver(self, source: Path, tmp_path: Path, account: Any) -> None:
        """The key is removed from a folder of keys also if another engine, without one, makes the release whole."""
        keys, to = tmp_path / "keys", tmp_path / "out"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("scoreshield.distributed.key_folder._unlink", lambda _: None)  # it is gone before that
            fail_at_write(patch, "parts/", before=True)
            with pytest.raises(Killed):
                release(source, to, ledger=account, key_folder=keys)
        rows = read_key_rows(account)
        (left,) = keys.iterdir()
        assert left.name.startswith(rows[0]["release"])
        assert left.read_bytes().hex() == rows[0]["secret"]
        assert json.loads(rows[0]["place"]) == [str(keys)]
        (keys / f".{rows[0]['release']}.half").write_bytes(b"x")  # written and not named yet
        (keys / "f").write_bytes(b"of another release")
        release(source, to, ledger=account)
        assert [path.name for path in keys.iterdir()] == ["f"]
        assert read_key_rows(account)[0]["secret"] is None

    @pytest.mark.parametrize("has_key_file", [True, False])
    def test_whole_release_of_a_killed_driver(
        self, source: Path, tmp_path: Path, account: Any, has_key_file: bool
    ) -> None:
        """The next release of the ledger ends the key, wherever it goes."""
        keys, to = tmp_path / "keys", tmp_path / "out"
        with pytest.MonkeyPatch.context() as patch:
            fail_after(patch, ReleaseKeyTable, "destroy", 1, before=True)
            with pytest.raises(Killed):
                release(source, to, ledger=account, key_folder=keys)
        row = read_key_rows(account)[0]
        assert row["secret"] is not None
        if has_key_file:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("scoreshield.distributed.key_folder._unlink", lambda _: None)
                with share_in_folder(keys, row["release"], bytes.fromhex(row["secret"])):
                    pass
            assert len(list(keys.iterdir())) == 1
        whole = read_folder(to)
        release(source, tmp_path / "next", ledger=account)
        assert [row["secret"] for row in read_key_rows(account)] == [None, None]
        assert list(keys.iterdir()) == []
        assert read_folder(to) == whole

    @pytest.mark.parametrize("change", ["nothing", "gone", "a file", "another release"])
    def test_release_that_is_not_whole_keeps_its_key(
        self, source: Path, tmp_path: Path, account: Any, change: str
    ) -> None:
        to = tmp_path / "out"
        begin(source, to, account, is_charged=True)
        rows = read_key_rows(account)
        if change != "nothing":
            shutil.move(to, tmp_path / "kept")
        if change == "a file":
            to.write_text("x")
        elif change == "another release":
            release(source, to, query=-QUERY, seed=1)
        release(source, tmp_path / "next", ledger=account)
        assert read_key_rows(account)[0] == rows[0]
        assert rows[0]["secret"] is not None


def test_failed_charge_of_a_charge_that_went_through(source: Path, tmp_path: Path, account: Any) -> None:
    """A connection that is lost after the commit does not give up a release that was charged."""

    def lose() -> None:
        raise LedgerError("The connection was lost.")

    with pytest.MonkeyPatch.context() as patch:
        act_after(patch, PendingCharge, "commit", lose)
        found = release(source, tmp_path / "out", ledger=account)
    assert len(account.entries()) == 1
    with pytest.MonkeyPatch.context() as patch:  # the near miss: a charge that failed is not taken for one
        patch.setattr(PendingCharge, "commit", lambda *_, **__: lose())
        with pytest.raises(LedgerError, match="connection was lost"):
            release(source, tmp_path / "other", ledger=account)
    assert len(account.entries()) == 1
    assert [row["release"] for row in read_key_rows(account)] == [found.manifest.release]
