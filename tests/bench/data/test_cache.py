"""The cache of official files: what is found is checked, what is missing is downloaded whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scoreshield._files import replace_file
from scoreshield.bench.data import cache, catalogue
from scoreshield.bench.data.catalogue import CATALOGUE, OfficialSet, RemoteFile
from scoreshield.errors import FileError, InvalidInput

BODY = bytes(range(256)) * 9000  # more than two blocks
MD5 = "md5:" + hashlib.md5(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    """Speaks real HTTP; the path says how it misbehaves."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.closing = threading.Event()

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of the test."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.close_connection = True
        getattr(self, self.path.strip("/"))()

    def answer(self, code: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def good(self) -> None:
        self.answer(200, {"Content-Length": str(len(BODY))}, BODY)

    def unsized(self) -> None:
        self.answer(200, {}, BODY)

    def truncated(self) -> None:
        self.answer(200, {"Content-Length": str(len(BODY))}, BODY[:1_500_000])

    def chunks_cut(self) -> None:
        self.answer(200, {"Transfer-Encoding": "chunked"}, b"400\r\n" + BODY[:100])

    def empty(self) -> None:
        self.answer(200, {"Content-Length": "0"})

    def absent(self) -> None:
        self.answer(404, {"Content-Length": "0"})

    def moved(self) -> None:
        self.answer(302, {"Location": self.server.address("good"), "Content-Length": "0"})

    def moved_away(self) -> None:
        self.answer(302, {"Location": "http://elsewhere.invalid/good", "Content-Length": "0"})

    def silent(self) -> None:
        self.server.closing.wait(10)

    def stalled(self) -> None:
        self.answer(200, {"Content-Length": str(len(BODY))}, BODY[:100])
        self.server.closing.wait(10)

    def nonsense(self) -> None:
        self.wfile.write(b"this is no HTTP\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.closing.set()
    made.shutdown()
    made.server_close()
    thread.join()


def remote(server: Server, path: str, checksum: str = MD5, size: int | None = None) -> RemoteFile:
    return RemoteFile("set.bin", server.address(path), checksum, size)


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", ["good", "unsized", "moved"])
def test_download_arrives_whole_remembered(server: Server, tmp_path: Path, path: str) -> None:
    """A download arrives whole and is remembered as checked."""
    seen: list[tuple[str, int, int | None]] = []
    target = tmp_path / "new" / "set.bin"
    cache.download_file(remote(server, path), target, lambda *said: seen.append(said), local_http=True)
    assert target.read_bytes() == BODY
    assert contents(tmp_path) == ["new/set.bin", "new/set.bin.checked"]
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    assert seen[-1] == ("set.bin", len(BODY), None if path == "unsized" else len(BODY))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("truncated", r"the connection ended after 1500000 of 2304000 bytes"),
        ("chunks_cut", r"IncompleteRead"),
        ("empty", r"the server sent nothing"),
        ("absent", r"the server answered 404 Not Found"),
        ("moved_away", r"http://elsewhere\.invalid/good is not an https address"),
        ("silent", r"the server did not answer in time"),
        ("stalled", r"the server did not answer in time"),
        ("nonsense", r"this is no HTTP"),
    ],
)
def test_failed_download_says_why_leaves(server: Server, tmp_path: Path, path: str, words: str) -> None:
    """A failed download says why and leaves nothing."""
    start = time.monotonic()
    with pytest.raises(FileError, match=words) as caught:
        cache.download_file(remote(server, path), tmp_path / "set.bin", timeout=0.5, local_http=True)
    message = str(caught.value)
    assert message.startswith("Cannot download set.bin: ")
    assert message.endswith(f"get it from {server.address(path)} by hand and put it at {tmp_path / 'set.bin'}.")
    assert "\n" not in message
    assert contents(tmp_path) == []
    assert time.monotonic() - start < 5


def test_download_another_checksum_not_kept(server: Server, tmp_path: Path) -> None:
    """A download with another checksum is not kept."""
    wrong = "md5:" + "0" * 32
    with pytest.raises(FileError, match=f"expected {wrong} but got {MD5[4:]}; nothing was kept"):
        cache.download_file(remote(server, "good", wrong), tmp_path / "set.bin", local_http=True)
    assert contents(tmp_path) == []


def test_a_full_disk_leaves_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        FileError, match=r"^Cannot write .*set\.bin: No space left on device; nothing was changed there"
    ):
        cache.download_file(remote(server, "good"), tmp_path / "set.bin", local_http=True)
    assert contents(tmp_path) == []


def test_server_not_plain_http_rejected(server: Server, tmp_path: Path) -> None:
    """A server that is not there and plain http are rejected."""
    with pytest.raises(FileError, match=r"http://127\.0\.0\.1:\d+/good is not an https address"):
        cache.download_file(remote(server, "good"), tmp_path / "set.bin")
    assert server.asked == []
    for address in ("http://example.invalid/x", "file:///etc/hostname", "ftp://127.0.0.1/x"):
        with pytest.raises(FileError, match="is not an https address"):
            cache.download_file(RemoteFile("x", address, MD5), tmp_path / "x", local_http=True)
    gone = RemoteFile("x", "http://127.0.0.1:1/x", MD5)
    with pytest.raises(FileError, match="Connection refused"):
        cache.download_file(gone, tmp_path / "x", local_http=True)
    assert contents(tmp_path) == []


def test_a_body_without_end_ends(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST", 1000)
    with pytest.raises(FileError, match="the server sent more than the 1000 bytes that it should have"):
        cache.download_file(remote(server, "unsized"), tmp_path / "set.bin", local_http=True)
    assert contents(tmp_path) == []


def test_body_larger_than_file_should_cut(server: Server, tmp_path: Path) -> None:
    """Both with a length that says so and without one; the right size passes."""
    short = len(BODY) - 1
    for path, words in (
        ("good", f"the server offers {len(BODY)} bytes, more than the {short}"),
        ("unsized", "sent more"),
    ):
        with pytest.raises(FileError, match=words):
            cache.download_file(remote(server, path, size=short), tmp_path / "set.bin", local_http=True)
        assert contents(tmp_path) == []
        cache.download_file(remote(server, path, size=len(BODY)), tmp_path / path / "set.bin", local_http=True)
        for file in (tmp_path / path).iterdir():
            file.unlink()


def test_file_written_anew_never_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is written anew is never missing."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # for speed
    path = tmp_path / "a"
    path.write_bytes(b"0")
    done = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not done.is_set():
            try:
                seen.add(path.read_bytes())
            except FileNotFoundError:
                seen.add(b"missing")

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1500):
        replace_file(path, lambda out, number=number: out.write(b"%d" % (number % 7)))
    done.set()
    reader.join()
    assert seen <= {b"%d" % number for number in range(7)}
    assert contents(tmp_path) == ["a"]


def test_many_downloads_file_once_all(server: Server, tmp_path: Path) -> None:
    """Many downloads of one file at once all succeed."""
    errors: list[Exception] = []

    def fetch() -> None:
        try:
            cache.download_file(remote(server, "good"), tmp_path / "set.bin", local_http=True)
        except Exception as error:
            errors.append(error)

    for _ in range(3):
        threads = [threading.Thread(target=fetch) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert contents(tmp_path) == ["set.bin", "set.bin.checked"]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> OfficialSet:
    """A set of two files, whose server does not exist."""
    files = (
        RemoteFile("a.bin", "https://example.invalid/a.bin", MD5),
        RemoteFile("b.bin", "https://example.invalid/b.bin", "sha256:" + hashlib.sha256(b"first").hexdigest()),
    )
    made = OfficialSet("Tiny", files, "Look, do not touch.", "Nobody (1999)")
    monkeypatch.setitem(CATALOGUE, "tiny", made)
    return made


def place(root: Path, a: bytes = BODY, b: bytes = b"first") -> None:
    (root / "tiny").mkdir(parents=True)
    (root / "tiny" / "a.bin").write_bytes(a)
    (root / "tiny" / "b.bin").write_bytes(b)


@pytest.mark.usefixtures("tiny")
def test_files_lie_checked_used(tmp_path: Path) -> None:
    """Files that lie there are checked and used."""
    place(tmp_path)
    found = cache.fetch("tiny", root=tmp_path, offline=True)
    assert found == {"a.bin": tmp_path / "tiny" / "a.bin", "b.bin": tmp_path / "tiny" / "b.bin"}
    assert json.loads((tmp_path / "tiny" / "b.bin.checked").read_text())["checksum"].startswith("sha256:")
    assert not (tmp_path / "tiny" / "TERMS.txt").exists()  # nothing was downloaded


def test_terms_put_beside_downloaded(tiny: OfficialSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terms are put beside what was downloaded."""
    monkeypatch.setattr(cache, "download_file", lambda _, path, __: (path.parent.mkdir(exist_ok=True), path.touch()))
    cache.fetch_file("tiny", "a.bin", tmp_path)
    words = (tmp_path / "tiny" / "TERMS.txt").read_text()
    for part in (tiny.title, tiny.terms, tiny.citation, tiny.files[0].address):
        assert part in words


@pytest.mark.usefixtures("tiny")
def test_passed_check_not_made_twice_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A passed check is not made twice and a changed file is checked again."""
    place(tmp_path)
    hashed: list[str] = []
    digest = cache._compute_checksum
    monkeypatch.setattr(cache, "_compute_checksum", lambda path, how: (hashed.append(path.name), digest(path, how))[1])
    for _ in range(3):
        cache.fetch("tiny", root=tmp_path, offline=True)
    assert hashed == ["a.bin", "b.bin"]
    os.utime(tmp_path / "tiny" / "a.bin", ns=(1, 1))
    cache.fetch("tiny", root=tmp_path, offline=True)
    assert hashed == ["a.bin", "b.bin", "a.bin"]


@pytest.mark.usefixtures("tiny")
def test_file_another_checksum_left_alone(tmp_path: Path) -> None:
    """A file with another checksum is left alone and not used."""
    place(tmp_path, a=b"something else")
    with pytest.raises(InvalidInput, match=r"a\.bin is not used: its checksum md5:\w+ is not the published one md5:"):
        cache.fetch("tiny", root=tmp_path)
    assert (tmp_path / "tiny" / "a.bin").read_bytes() == b"something else"


@pytest.mark.usefixtures("tiny")
def test_file_changed_behind_back_time(tmp_path: Path) -> None:
    """Written in place, or exchanged for another, with size and time of writing as they were."""
    place(tmp_path)
    path = tmp_path / "tiny" / "b.bin"
    for exchange in (False, True):
        cache.fetch("tiny", root=tmp_path, offline=True)
        before = path.stat()
        if exchange:
            path.rename(tmp_path / "aside")
        path.write_bytes(b"other")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(InvalidInput, match=r"b\.bin is not used: its checksum sha256:\w+ is not the published one"):
            cache.fetch("tiny", root=tmp_path, offline=True)
        path.write_bytes(b"first")


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("damage", ["[]", "{", "null", "[" * 100_000])
def test_a_damaged_record_only_costs_time(tmp_path: Path, damage: str) -> None:
    place(tmp_path)
    (tmp_path / "tiny" / "a.bin.checked").write_text(damage)
    cache.fetch("tiny", root=tmp_path, offline=True)
    assert json.loads((tmp_path / "tiny" / "a.bin.checked").read_text())["checksum"] == MD5


@pytest.mark.usefixtures("tiny")
def test_missing_file_offline_says_get_put(tmp_path: Path) -> None:
    """A missing file offline says what to get and where to put it."""
    with pytest.raises(FileError) as caught:
        cache.fetch("tiny", root=tmp_path, offline=True)
    assert str(caught.value) == (
        f"There is no file {tmp_path / 'tiny' / 'a.bin'}; download https://example.invalid/a.bin and put it there "
        "(offline: nothing was downloaded)."
    )
    assert contents(tmp_path) == []


@pytest.mark.usefixtures("tiny")
def test_missing_file_without_network_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file without a network says the same."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        FileError, match=r"^Cannot download a\.bin: .*get it from https://example\.invalid/a\.bin by hand"
    ):
        cache.fetch("tiny", root=tmp_path)
    assert contents(tmp_path) == []


def test_folder_cannot_made_sentence(tiny: OfficialSet, tmp_path: Path) -> None:
    """A folder that cannot be made is one sentence."""
    (tmp_path / "tiny").write_text("a file where a folder should be")
    with pytest.raises(FileError, match=r"Cannot (make the folder|look for) "):
        cache.download_file(tiny.files[0], tmp_path / "tiny" / "a.bin")


def test_folder_argument_variable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is the argument or the variable or the cache."""
    monkeypatch.delenv("SCORESHIELD_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.find_set_folder("x") == tmp_path / ".cache" / "scoreshield" / "x"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert cache.find_set_folder("x") == tmp_path / "c" / "scoreshield" / "x"
    monkeypatch.setenv("SCORESHIELD_DATA", str(tmp_path / "d"))
    assert cache.find_set_folder("x") == tmp_path / "d" / "x"
    assert cache.find_set_folder("x", "e") == Path("e/x")
    with pytest.raises(InvalidInput, match="'root' parameter of fetch"):
        cache.fetch("cifar-10", root=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'name' parameter of fetch must be one of 'cifar-10'"):
        cache.fetch("imagenet")
    with pytest.raises(InvalidInput, match="'name' parameter of fetch_file must be one of 'cifar-10'"):
        cache.fetch_file("imagenet", "x")
    with pytest.raises(
        InvalidInput, match=r"'file_name' parameter of fetch_file must be one of 'Stsbenchmark\.tar\.gz'"
    ):
        cache.fetch_file("stsb", "x")


def test_every_entry_catalogue_complete() -> None:
    """Every entry of the catalogue is complete."""
    lengths = {"md5": 32, "sha256": 64}
    for official in catalogue.CATALOGUE.values():
        assert official.terms
        assert official.citation
        assert official.files
        for file in official.files:
            assert file.address.startswith("https://")
            assert Path(file.name).name == file.name
            how, _, digits = file.checksum.partition(":")
            assert len(bytes.fromhex(digits)) * 2 == lengths[how]
            assert dataclasses.replace(file) == official.file(file.name)
