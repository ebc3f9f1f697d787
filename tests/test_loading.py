"""Files that a stranger wrote: each ends in one sentence, within the limits of size."""

from __future__ import annotations

import base64
import io
import json
import os
import struct
import sys
import threading
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import _loading
from scoreshield._files import read_array, read_json_lines
from scoreshield.audit import journal, output_lines
from scoreshield.bench.data.embedders import HashingEmbedder, embed_cached
from scoreshield.bench.experiments import table
from scoreshield.bench.experiments.grid import parse_yaml, read_yaml
from scoreshield.bench.rag.corpus import read_corpus, read_questions
from scoreshield.search import PrivateSearch

GOLDEN = Path(__file__).parent / "golden" / "releases"
MIB = 2**20


def one_sentence(error: BaseException) -> bool:
    text = str(error)
    return bool(text) and "\n" not in text and text.isprintable() and len(text) < 1000


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode()


def bomb(path: Path, size: int, name: str = "embeddings.npy") -> None:
    """An .npz of a few kilobytes that unpacks to ``size`` bytes of zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w", force_zip64=True) as file:
        file.write(header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},)}}\n"))
        for _ in range(size // MIB):
            file.write(bytes(MIB))


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_loading, "LARGEST", 8 * MIB)


class TestSizes:
    @pytest.mark.usefixtures("small_limit")
    @pytest.mark.parametrize("read", [read_array, ss.load, PrivateSearch.load])
    def test_archive_unpacks_more_limit_not_read(self, read: Callable[[Path], Any], tmp_path: Path) -> None:
        """An archive that unpacks to more than the limit is not read."""
        path = tmp_path / "bomb.npz"
        bomb(path, 64 * MIB)
        assert path.stat().st_size < MIB
        tracemalloc.start()
        try:
            with pytest.raises(ss.InvalidInput, match="more than the 8,388,608 that are allowed") as caught:
                read(path)
            assert tracemalloc.get_traced_memory()[1] < 4 * MIB
        finally:
            tracemalloc.stop()
        assert one_sentence(caught.value)
        assert _loading.VARIABLE in str(caught.value)

    @pytest.mark.usefixtures("small_limit")
    def test_variable_allows_limit_itself_passes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The variable allows it and the limit itself passes."""
        bomb(tmp_path / "bomb.npz", 16 * MIB)
        monkeypatch.setenv(_loading.VARIABLE, str(17 * MIB))
        assert len(read_array(tmp_path / "bomb.npz")) == 16 * MIB
        monkeypatch.setenv(_loading.VARIABLE, "many")
        with pytest.raises(ss.InvalidInput, match="must be a number of bytes"):
            read_array(tmp_path / "bomb.npz")

    @pytest.mark.usefixtures("small_limit")
    def test_an_uncompressed_file_of_any_size_is_read(self, tmp_path: Path) -> None:
        rows = np.random.default_rng(0).random((16 * MIB // 8, 1))
        np.savez(tmp_path / "rows.npz", embeddings=rows)
        assert np.array_equal(read_array(tmp_path / "rows.npz"), rows)

    @pytest.mark.usefixtures("small_limit")
    def test_directory_lies_about_sizes_not_believed(self, tmp_path: Path) -> None:
        """The directory says a kilobyte; the stream holds 64 MiB."""
        path = tmp_path / "liar.npz"
        bomb(path, 64 * MIB)
        with zipfile.ZipFile(path) as archive:
            entry = archive.infolist()[0]
        content = path.read_bytes().replace(struct.pack("<I", entry.file_size), struct.pack("<I", 1024))
        content = content.replace(struct.pack("<Q", entry.file_size), struct.pack("<Q", 1024))
        path.write_bytes(content)
        tracemalloc.start()
        try:
            with pytest.raises(ss.InvalidInput):
                read_array(path)
            assert tracemalloc.get_traced_memory()[1] < 4 * MIB
        finally:
            tracemalloc.stop()

    @pytest.mark.usefixtures("small_limit")
    def test_parquet_file_repeated_values_not_read(self, tmp_path: Path) -> None:
        """A parquet file of repeated values is not read beyond the limit."""
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        path = tmp_path / "rows.parquet"
        parquet.write_table(pa.table({"a": pa.array(np.zeros(4 * MIB)), "text": ["x"] * (4 * MIB)}), path)
        assert path.stat().st_size < MIB
        with pytest.raises(ss.InvalidInput, match="bytes in memory"):
            read_array(path)

    @pytest.mark.parametrize("mapped", [False, True])
    @pytest.mark.parametrize(
        "text",
        [
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000000, 8)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 8)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2)}",
            "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}",
            "{'descr': ('<f8', (1000000000,)), 'fortran_order': False, 'shape': (1,)}",
            "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': " + "(" * 9000,
            "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 40 + ")}",
            "[]",
            "",
        ],
    )
    def test_array_absurd_form_sentence(self, text: str, mapped: bool, tmp_path: Path) -> None:
        """An array of an absurd form is one sentence."""
        path = tmp_path / "rows.npy"
        path.write_bytes(header(text) + bytes(24))
        with pytest.raises(ss.InvalidInput) as caught:
            print(read_array(path, mapped=mapped))
        assert one_sentence(caught.value)

    def test_packed_line_journal_names_more_should(self) -> None:
        """A packed line of a journal that names more than it should."""
        packed = base64.b64encode(zlib.compress(bytes(64 * MIB))).decode()
        for shape in ([8], [2**40], [2**20, 2**20], [-1], [0]):
            for half in (False, True):
                tracemalloc.start()
                try:
                    with pytest.raises((ValueError, TypeError)):
                        output_lines.decode_output(
                            {"array": {"type": "<f8", "shape": shape, "half": half, "packed": packed}}
                        )
                    assert tracemalloc.get_traced_memory()[1] < 4 * MIB
                finally:
                    tracemalloc.stop()

    def test_outputs_every_form_still_come_back(self) -> None:
        """Outputs of every form still come back from a journal."""
        rng = np.random.default_rng(1)
        square = rng.random((20, 20))
        for output in (rng.random(100), rng.random((10, 12)), square + square.T, np.arange(90) % 2, rng.random(3)):
            found = output_lines.encode_output(output, 10)
            assert found is not None
            assert np.array_equal(output_lines.decode_output(json.loads(json.dumps(found))), output)

    def test_output_could_not_read_back_not_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An output that could not be read back is not kept."""
        monkeypatch.setattr(output_lines, "LARGEST", 800)
        assert output_lines.encode_output(np.arange(100.0), 100) is not None
        assert output_lines.encode_output(np.arange(101.0), 101) is None
        assert output_lines.encode_output({"scores": [np.arange(101.0)]}, 101) is None


# ---- Archives whose structure is wrong.


def rezipped(path: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]], **options: Any) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in change(parts).items():
            archive.writestr(name, content)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    path = tmp_path / "release.npz"
    path.write_bytes((GOLDEN / "scores-gaussian.npz").read_bytes())
    return path


def with_meta(path: Path, text: str | bytes) -> None:
    content = npy(np.array(text)) if isinstance(text, str) else text
    rezipped(path, lambda parts: parts | {"meta.npy": content})


class TestReleases:
    @pytest.mark.parametrize(
        "text",
        [
            "[" * 100_000,
            '{"a":' * 100_000,
            '{"format": 1, "kind": "scores", "guarantee": NaN, "facts": {}}',
            '{"format": 1, "kind": "scores", "guarantee": {"epsilon": 1e999}, "facts": {}}',
            '{"format": 1, "kind": "scores", "guarantee": {"epsilon": ' + "9" * 5000 + '}, "facts": {}}',
            '{"format": 1, "kind": "scores", "guarantee": [], "facts": {}}',
            '{"format": 1, "kind": ["scores"], "guarantee": {}, "facts": 3}',
            '{"format": 1}',
            '{"format": 1, "kind": "' + "x\x1b[2J" * 100 + '", "guarantee": {}, "facts": {}}',
            "null",
            "",
        ],
    )
    def test_text_no_guarantee_sentence(self, text: str, release: Path) -> None:
        """A text that is no guarantee is one sentence."""
        with_meta(release, text)
        with pytest.raises(ss.InvalidInput) as caught:
            ss.load(release)
        assert one_sentence(caught.value)

    def test_nan_guarantee_otherwise_sound_form(self, release: Path) -> None:
        """Nan in a guarantee of otherwise sound form."""
        with zipfile.ZipFile(release) as archive:
            meta = str(np.load(io.BytesIO(archive.read("meta.npy"))))
        assert '"epsilon": 3.0' in meta
        for value in ("NaN", "Infinity", "1e999"):
            with_meta(release, meta.replace('"epsilon": 3.0', f'"epsilon": {value}'))
            with pytest.raises(ss.InvalidInput):
                ss.load(release)

    def test_one_name_twice(self, release: Path) -> None:
        with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(release, "a") as archive:
            archive.writestr("noisy.npy", npy(np.zeros(6)))
        with pytest.raises(ss.InvalidInput, match="holds one name twice"):
            ss.load(release)

    @pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_another_method_of_compression(self, method: int, release: Path) -> None:
        rezipped(release, dict, compression=method)
        with pytest.raises(ss.InvalidInput, match="compressed by another method"):
            ss.load(release)

    def test_a_flipped_bit_is_noticed_by_the_checksum(self, release: Path) -> None:
        content = bytearray(release.read_bytes())
        with zipfile.ZipFile(release) as archive:
            entry = archive.getinfo("noisy.npy")
            assert entry.compress_type == zipfile.ZIP_STORED
        place = content.index(npy(np.load(release)["noisy"])[-48:])
        content[place] ^= 1
        release.write_bytes(bytes(content))
        with pytest.raises(ss.InvalidInput, match=r"corrupt.*CRC"):
            ss.load(release)

    def test_a_pickle_is_never_loaded(self, release: Path) -> None:
        with_meta(release, npy(np.array([{"a": 1}], dtype=object)))
        with pytest.raises(ss.InvalidInput, match="arrays of type object are not read"):
            ss.load(release)


# ---- What is no regular file, or may not be read.

READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "release": ("x.npz", ss.load),
    "index": ("x.npz", PrivateSearch.load),
    "npy": ("x.npy", read_array),
    "mapped": ("x.npy", lambda path: read_array(path, mapped=True)),
    "npz": ("x.npz", read_array),
    "parquet": ("x.parquet", read_array),
    "grid": ("x.yaml", read_yaml),
    "table": ("x.csv", table.read_results),
    "cells": ("x.jsonl", read_json_lines),
    "journal": ("x.jsonl", journal._read_releases),
    "frames": ("x.tsv", read_questions),
}


@pytest.mark.parametrize("kind", sorted(READERS))
class TestEveryLoader:
    def failing(self, kind: str, path: Path) -> ss.ScoreShieldError:
        with pytest.raises(ss.ScoreShieldError) as caught:
            READERS[kind][1](path)
        assert one_sentence(caught.value)
        return caught.value

    def test_a_folder(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / READERS[kind][0]
        path.mkdir()
        assert path.name in str(self.failing(kind, path))

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_a_pipe_without_a_writer(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / READERS[kind][0]
        os.mkfifo(path)
        caught: list[BaseException] = []
        thread = threading.Thread(target=lambda: caught.append(self.failing(kind, path)), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert "not a regular file" in str(caught[0])

    @pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs devices")
    def test_a_device(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / READERS[kind][0]
        path.symlink_to("/dev/zero")
        assert "not a regular file" in str(self.failing(kind, path))

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
    def test_a_forbidden_file(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / READERS[kind][0]
        path.write_bytes(b"x")
        path.chmod(0)
        assert isinstance(self.failing(kind, path), ss.FileError)

    @pytest.mark.parametrize(
        "content",
        [b"\xff\xfe\x00\xd8", b"[" * 100_000 + b"\n", b"NaN\n", b'{"a": 1e999}\n', b"9" * 5000 + b"\n", b"\x00" * 64],
        ids=["no text", "deep", "NaN", "infinite", "digits", "zeros"],
    )
    def test_content_that_is_none(self, kind: str, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / READERS[kind][0]
        path.write_bytes(content)
        if kind in ("cells", "journal") and not content.endswith(b"\n"):
            assert not READERS[kind][1](path)[0 if kind == "journal" else slice(None)]  # a line that was cut short
        elif (kind, content) == ("grid", b'{"a": 1e999}\n'):
            assert READERS[kind][1](path) == {"a": "1e999"}  # a text in YAML, which every setting rejects
        else:
            self.failing(kind, path)


def test_a_corpus_from_an_endless_stream_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("needs devices")
    monkeypatch.setenv(_loading.VARIABLE, str(MIB))
    (tmp_path / "pages.jsonl").symlink_to("/dev/zero")
    with pytest.raises(ss.InvalidInput, match="gives more than 1,048,576 bytes"):
        read_corpus(tmp_path / "pages.jsonl")


def test_damaged_cache_embeddings_made_anew(tmp_path: Path) -> None:
    """A damaged cache of embeddings is made anew."""
    embedder, items = HashingEmbedder(8), ["one text", "another"]
    rows = embed_cached(embedder, items, tmp_path)
    (kept,) = tmp_path.glob("*.npy")
    (facts,) = tmp_path.glob("*.json")
    absurd = header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1000000000000)}")
    for file, content in ((kept, absurd), (facts, b"[" * 100_000), (facts, b"\xff"), (facts, b'{"shape": NaN}')):
        file.write_bytes(content)
        assert np.array_equal(embed_cached(embedder, items, tmp_path), rows)


# ---- Grids.


class TestGrids:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("a: &a [x]\nb: [*a, *a]\n", "anchors and aliases"),
            ("a: &a {b: *a}\n", "anchors and aliases"),
            ("a: " + "[" * 17 + "]" * 17, "nested more than 16 deep"),
            ("a: " + "{b: " * 5000, "nested more than 16 deep"),
            ("a: " + "9" * 1001, "longer than 1000 characters"),
            ("a: !!python/object/apply:os.system [ls]\n", "tags"),
            ("a: !!str 3\n", "tags"),
            ("a: 2020-99-99\n", "month must be"),
            ("a: " + "x" * 2**16, "longer than 65,536 characters"),
            ("a: \x00", "not valid YAML"),
        ],
    )
    def test_what_no_grid_needs_is_one_sentence(self, text: str, says: str) -> None:
        with pytest.raises(ss.InvalidInput, match=says) as caught:
            parse_yaml(text, "grid.yaml")
        assert one_sentence(caught.value)

    def test_a_grid_at_the_limits_is_read(self) -> None:
        assert parse_yaml("a: " + "[" * 15 + "]" * 15, "g")["a"] is not None
        assert parse_yaml("a: " + "9" * 1000, "g")["a"] == int("9" * 1000)

    def test_many_aliases_of_aliases_are_not_built(self, tmp_path: Path) -> None:
        levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
        (tmp_path / "laughs.yaml").write_text("\n".join(levels))
        with pytest.raises(ss.InvalidInput, match="line 1 is not valid YAML: anchors and aliases"):
            read_yaml(tmp_path / "laughs.yaml")


def test_text_error_cannot_say_itself() -> None:
    """The text of an error that cannot say itself."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert _loading.describe_error(Mute()) == "Mute"
    assert _loading.describe_error(ValueError("a\x1b[31mb\nc")) == "a?[31mb"


@pytest.mark.skipif(sys.platform == "win32", reason="a file in use cannot be removed")
def test_a_mapped_file_outlives_its_name(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(12.0).reshape(3, 4))
    rows = read_array(tmp_path / "rows.npy", mapped=True)
    (tmp_path / "rows.npy").unlink()
    assert rows.sum() == 66
