"""The chat client against a real server that answers, stalls, breaks off, refuses and talks nonsense."""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
import socket
import socketserver
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import BLANK, BROKEN, DROP, HANG, HTML, NO_CHOICES, NO_CONTENT, SECRET, ChatServer, running

from scoreshield.bench.rag.chat import ChatError, ChatModel
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError

KEY = "sk-very-private"
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{SECRET}: 東京 {{x}} 🙂"}]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("SCORESHIELD_API_KEY", raising=False)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with running(ChatServer()) as server:
        yield server


@pytest.fixture
def connect(server: ChatServer) -> Iterator[Callable[..., ChatModel]]:
    models = []

    def make(**options: Any) -> ChatModel:
        models.append(ChatModel("a-model", **({"base_url": server.url, "api_key": KEY, "retries": 2} | options)))
        return models[-1]

    yield make
    for model in models:
        model.close()


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def assert_discreet(error: BaseException) -> None:
    """One sentence, with neither the key nor the prompt in it, nor in anything that hangs on to it."""
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    assert error.__cause__ is None
    assert error.__context__ is None
    for secret in (KEY, SECRET):
        assert secret not in text
        assert secret not in repr(vars(error))


def test_what_is_sent(server: ChatServer, connect: Callable[..., ChatModel]) -> None:
    server.script = ["  Tokyo \n"]
    assert connect(options={"top_p": 0.5}).complete(ASKED) == "Tokyo"
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "a-model",
        "messages": ASKED,
        "temperature": 0.0,
        "max_tokens": 512,
        "seed": 0,
        "top_p": 0.5,
    }


def test_parameters_can_be_left_out(server: ChatServer, connect: Callable[..., ChatModel]) -> None:
    connect(temperature=None, max_tokens=None, seed=None).complete(ASKED)
    assert set(server.requests[0].body) == {"model", "messages"}


def test_key_from_the_environment(
    server: ChatServer, connect: Callable[..., ChatModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    monkeypatch.setenv("OPENAI_ORG_ID", "an-organisation")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "a-project")
    connect(api_key=None).complete(ASKED)
    monkeypatch.setenv("SCORESHIELD_API_KEY", "from-outside")
    connect(api_key=None).complete(ASKED)
    assert [r.headers["authorization"] for r in server.requests] == ["Bearer none", "Bearer from-outside"]
    sent = str([r.headers for r in server.requests])
    assert "an-organisation" not in sent
    assert "a-project" not in sent


def test_waits_as_long_as_the_server_asks(server: ChatServer, connect: Callable[..., ChatModel]) -> None:
    server.script = [(429, {"Retry-After": "1"}), "at last"]
    assert connect().complete(ASKED) == "at last"
    first, second = server.requests
    assert second.at - first.at > 0.95  # without the header it would be 0.375 to 0.5 s
    assert first.raw == second.raw


def test_gives_up_where_the_wait_is_too_long(server: ChatServer, connect: Callable[..., ChatModel]) -> None:
    server.script = [(429, {"Retry-After": "3600"})]
    with pytest.raises(ChatError, match=r"still over its rate limit \(status 429\)") as caught:
        connect().complete(ASKED)
    assert len(server.requests) == 1
    assert caught.value.status == 429


def test_waits_grow(server: ChatServer, connect: Callable[..., ChatModel]) -> None:
    server.script = [(500, {}), (503, {}), "back"]
    assert connect().complete(ASKED) == "back"
    a, b, c = (request.at for request in server.requests)
    assert b - a > 0.37
    assert c - b > 0.74


@pytest.mark.parametrize(
    ("step", "options", "requests", "says", "status"),
    [
        ((500, {}), {"retries": 1}, 2, "answered with status 500 (up to 2 tries).", 500),
        ((429, {"Retry-After": "0.01"}), {}, 3, "still over its rate limit (status 429) (up to 3 tries).", 429),
        (HANG, {"retries": 1, "timeout": 0.3}, 2, "did not answer in time (up to 2 tries).", None),
        (DROP, {"retries": 1}, 2, "broke the connection off (up to 2 tries).", None),
        (DROP, {"retries": 0}, 1, "broke the connection off (1 try).", None),
        ((401, {}), {}, 1, "rejected the key (status 401)", 401),
        ((403, {}), {}, 1, "(status 403)", 403),
        ((404, {}), {}, 1, "has no such model or address (status 404)", 404),
        ((400, {}), {}, 1, "the context may be longer than the model takes", 400),
        ((400, {}), {}, 1, "leave out what the server may not know: temperature, max_tokens or seed.", 400),
        ((422, {}), {}, 1, "leave out what the server may not know: temperature, max_tokens or seed.", 422),
        ((304, {}), {}, 1, "sends requests elsewhere (status 304), which prompts do not follow", 304),
        ((418, {}), {}, 1, "answered with status 418.", 418),
        (BROKEN, {}, 1, "no chat completion", None),
        (HTML, {}, 1, "no chat completion", None),
        (NO_CHOICES, {}, 1, "no chat completion", None),
        (NO_CONTENT, {}, 1, "gave an empty answer", None),
        (BLANK, {}, 1, "gave an empty answer", None),
        ("   \n", {}, 1, "gave an empty answer", None),
    ],
)
def test_failures(
    server: ChatServer,
    connect: Callable[..., ChatModel],
    step: Any,
    options: dict[str, Any],
    requests: int,
    says: str,
    status: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    server.script = [step] * 9
    with pytest.raises(ChatError, match=re.escape(says)) as caught:
        connect(**options).complete(ASKED)
    assert len(server.requests) == requests
    assert isinstance(caught.value, ScoreShieldError)
    assert caught.value.status == status
    assert server.url in str(caught.value)
    assert "'a-model'" in str(caught.value)
    assert_discreet(caught.value)
    assert SECRET not in caplog.text
    assert KEY not in caplog.text


def test_no_server_there(connect: Callable[..., ChatModel]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ChatError, match="cannot be reached") as caught:
        connect(base_url=url, retries=0).complete(ASKED)
    assert_discreet(caught.value)


def test_order_and_bounded_parallelism(server: ChatServer, connect: Callable[..., ChatModel]) -> None:
    def reply(request: Any) -> str:
        time.sleep(0.05 if request.user == "0" else 0.01)  # the first comes last
        return f"answer {request.user}"

    server.reply = reply
    seen: list[tuple[int, int]] = []
    conversations = [ask(str(i)) for i in range(12)]
    answers = connect().complete_all(conversations, workers=3, progress=lambda done, total: seen.append((done, total)))
    assert answers == [f"answer {i}" for i in range(12)]
    assert server.most_at_once == 3
    assert seen == [(i, 12) for i in range(1, 13)]
    assert connect().complete_all([]) == []


def test_equal_conversations_are_asked_once(server: ChatServer, connect: Callable[..., ChatModel]) -> None:
    server.reply = lambda request: f"answer {request.user}"
    assert connect().complete_all([ask("a"), ask("b"), ask("a")]) == ["answer a", "answer b", "answer a"]
    assert len(server.requests) == 2


def rows(folder: Path) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as database:
        return database.execute("SELECT mode, filename, value FROM Cache").fetchall()


def change_rows(folder: Path, change: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as database, database:
        database.execute(f"UPDATE Cache SET {change}", values)


def test_cache_answers_again(server: ChatServer, connect: Callable[..., ChatModel], tmp_path: Path) -> None:
    """The same request is answered from the folder, whatever the key and the time-out; the folder holds no prompt."""
    folder = tmp_path / "new" / "folder"
    server.script = ["first"]
    assert connect(cache=folder).complete(ASKED) == "first"
    assert connect(cache=folder, api_key="another-key", timeout=9.0, retries=1).complete(ASKED) == "first"
    assert len(server.requests) == 1
    assert rows(folder) == [(1, None, "first")]
    assert not any(SECRET.encode() in file.read_bytes() for file in folder.iterdir())


class Trap:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("damage", ["null", "blob", "pickle", "file"])
def test_cache_reads_texts_alone(
    server: ChatServer, connect: Callable[..., ChatModel], tmp_path: Path, damage: str
) -> None:
    """A value that is not a text is asked for again: nothing is unpickled, and no file is read or removed."""
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    folder = tmp_path / "answers"
    server.script = ["first", "second"]
    assert connect(cache=folder).complete(ASKED) == "first"
    changes = {
        "null": ("value = ?", None),
        "blob": ("value = ?", b"\xff"),
        "pickle": ("mode = 4, value = ?", pickle.dumps(Trap(tmp_path / "trap"))),
        "file": ("mode = 3, value = NULL, filename = ?", "../mine.txt"),
    }
    change_rows(folder, *changes[damage])
    assert connect(cache=folder).complete(ASKED) == "second"
    assert connect(cache=folder).complete(ASKED) == "second"
    assert rows(folder) == [(1, None, "second")]
    assert mine.read_text() == "mine"
    assert not (tmp_path / "trap").exists()


def test_cache_of_earlier_versions(server: ChatServer, connect: Callable[..., ChatModel], tmp_path: Path) -> None:
    """The JSON files of version 0.1 are read, and a damaged one is asked for again."""
    server.script = ["second"]
    model = connect(cache=tmp_path)
    name = model._name(ASKED)
    (tmp_path / f"{name}.json").write_text('{"answer": "first"}')
    assert model.complete(ASKED) == "first"
    assert not server.requests
    (tmp_path / f"{name}.json").write_text('{"answer": ')
    assert model.complete(ASKED) == "second"
    assert connect(cache=tmp_path).complete(ASKED) == "second"
    assert len(server.requests) == 1


def test_cache_of_half_a_character(server: ChatServer, connect: Callable[..., ChatModel], tmp_path: Path) -> None:
    """An answer that was cut within a character is kept as it is, for its owner alone."""
    server.script = ["half \ud83d"]
    assert connect(cache=tmp_path).complete(ASKED) == "half \ud83d"
    assert connect(cache=tmp_path).complete(ASKED) == "half \ud83d"
    assert len(server.requests) == 1
    assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.iterdir())


def test_cache_file_damaged(connect: Callable[..., ChatModel], tmp_path: Path) -> None:
    """A damaged file is one sentence."""
    (tmp_path / "cache.db").write_bytes(b"not a database" * 999)
    with pytest.raises(FileError, match=r"Cannot use the folder of answers .*: its cache\.db is damaged\."):
        connect(cache=tmp_path)


@pytest.mark.parametrize(
    "other",
    [{"temperature": 0.5}, {"max_tokens": 9}, {"seed": 1}, {"seed": None}, {"options": {"top_p": 0.9}}, {"name": "b"}],
    ids=str,
)
def test_cache_tells_requests_apart(
    server: ChatServer, connect: Callable[..., ChatModel], tmp_path: Path, other: dict[str, Any]
) -> None:
    connect(cache=tmp_path).complete(ASKED)
    name = other.pop("name", "a-model")
    with ChatModel(name, base_url=server.url, cache=tmp_path, **other) as model:
        model.complete(ASKED)
        model.complete([*ASKED[:1], {"role": "user", "content": "something else"}])
        model.complete([*ASKED[:1], {"role": "assistant", "content": ASKED[1]["content"]}])
    assert len(server.requests) == 4


def test_cache_tells_servers_apart(connect: Callable[..., ChatModel], tmp_path: Path) -> None:
    connect(cache=tmp_path).complete(ASKED)
    with running(ChatServer(reply=lambda _: "from another server")) as second:
        assert connect(cache=tmp_path, base_url=second.url).complete(ASKED) == "from another server"


def test_empty_answers_where_allowed(server: ChatServer, connect: Callable[..., ChatModel], tmp_path: Path) -> None:
    server.reply = lambda request: NO_CONTENT if request.user == "b" else "fine"
    model = connect(cache=tmp_path)
    assert model.complete_all([ask("a"), ask("b")], allow_empty=True) == ["fine", ""]
    assert model.complete_all([ask("a"), ask("b")], allow_empty=True) == ["fine", ""]
    assert len(server.requests) == 2
    with pytest.raises(ChatError, match="empty answer"):
        model.complete(ask("b"))


def test_a_server_that_dies_half_way(server: ChatServer, connect: Callable[..., ChatModel], tmp_path: Path) -> None:
    conversations = [ask(str(i)) for i in range(10)]
    server.reply = lambda request: (500, {}) if len(server.requests) > 4 else f"answer {request.user}"
    with pytest.raises(ChatError, match=r"status 500 .*; 4 of 10 answers are in and are kept in ") as caught:
        connect(cache=tmp_path, retries=0).complete_all(conversations, workers=1)
    assert str(tmp_path) in str(caught.value)
    assert caught.value.status == 500
    assert_discreet(caught.value)
    assert len(server.requests) <= 6  # nothing more is begun
    with pytest.raises(ChatError, match=r"0 of 10 answers are in and are lost, since no cache folder was given\."):
        connect(retries=0).complete_all(conversations)

    server.requests.clear()
    server.reply = lambda request: f"answer {request.user}"
    assert connect(cache=tmp_path).complete_all(conversations) == [f"answer {i}" for i in range(10)]
    assert sorted(int(request.user) for request in server.requests) == [4, 5, 6, 7, 8, 9]


def test_nothing_shows_the_key(connect: Callable[..., ChatModel]) -> None:
    assert repr(connect(base_url="https://host.example/v1/")) == "<ChatModel a-model at https://host.example/v1>"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_prompts_follow_no_redirection(server: ChatServer, connect: Callable[..., ChatModel], status: int) -> None:
    with running(ChatServer()) as other:
        server.reply = lambda _: (status, {"Location": f"{other.url}/chat/completions"})
        with pytest.raises(ChatError, match=rf"sends requests elsewhere \(status {status}\)") as caught:
            connect().complete(ASKED)
        assert not other.requests
    assert len(server.requests) == 1
    assert caught.value.status == status
    assert_discreet(caught.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("https://host.example/v1", {}),
        ("http://localhost:8000/v1", {}),
        ("http://127.8.9.1/v1", {}),
        ("http://[::1]:8000/v1", {}),
        ("http://host.example/v1", {"allow_http": True}),
    ],
)
def test_addresses_that_are_safe_or_allowed(url: str, options: dict[str, Any]) -> None:
    with ChatModel("m", base_url=url, **options) as model:
        assert model.base_url == url


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_kept_answers_are_their_owners_alone(connect: Callable[..., ChatModel], tmp_path: Path) -> None:
    connect(cache=tmp_path / "answers").complete_all([ASKED])
    folder = tmp_path / "answers"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_interrupt_not_wait_server(server: ChatServer, connect: Callable[..., ChatModel]) -> None:
    """An interrupt does not wait for the server."""
    server.script = ["fine", HANG, HANG]

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        connect().complete_all([ask(str(i)) for i in range(9)], workers=3, progress=interrupt)
    assert time.monotonic() - start < 2
    assert all(thread.daemon for thread in threading.enumerate() if "(work)" in thread.name)
    time.sleep(0.3)
    assert len(server.requests) <= 4  # nothing more is begun


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(InvalidInput, match=re.escape("need the 'rag' extra: pip install 'scoreshield[rag]'.")):
        ChatModel("m", base_url="http://localhost/v1")


def test_with_a_package_that_logs_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai.__version__", "3.9.1")
    with pytest.raises(InvalidInput, match=re.escape("version 3.10 or newer. Got 3.9.1")):
        ChatModel("m", base_url="http://localhost/v1")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": ""}, "'model' parameter of ChatModel"),
        ({"model": None}, "'model' parameter"),
        ({"base_url": "localhost:8000"}, "'base_url' parameter of ChatModel"),
        ({"base_url": "ftp://host"}, "'base_url' parameter"),
        ({"base_url": "http://"}, "'base_url' parameter"),
        ({"base_url": "http://host:99999/v1"}, "'base_url' parameter"),
        ({"base_url": "http://ho st/v1"}, "'base_url' parameter"),
        ({"base_url": "http://[::1/v1"}, "'base_url' parameter"),
        ({"base_url": 3}, "'base_url' parameter"),
        ({"base_url": "http://a..b/v1"}, "'base_url' parameter"),
        ({"base_url": f"http://{'a' * 70}.b/v1"}, "'base_url' parameter"),
        ({"base_url": "https://\u2603\u200b.b/v1"}, "'base_url' parameter"),
        ({"base_url": f"https://me:{KEY}@host.example/v1"}, "without a user's name"),
        ({"base_url": f"https://{KEY}@host.example/v1"}, "without a user's name"),
        ({"base_url": f"https://host.example/v1?key={KEY}"}, "'?'"),
        ({"base_url": f"https://host.example/v1#{KEY}"}, "'#'"),
        ({"base_url": "http://host.example/v1"}, "Prompts to host.example would be sent over plain http"),
        ({"base_url": "http://127.0.0.1.host.example/v1"}, "over plain http"),
        ({"base_url": "HTTP://8.8.8.8/v1"}, "over plain http"),
        ({"api_key": ""}, "'api_key' parameter"),
        ({"api_key": f"{KEY}\n"}, "'api_key' parameter"),
        ({"api_key": f"{KEY}é"}, "'api_key' parameter"),
        ({"api_key": 7}, "'api_key' parameter"),
        ({"temperature": -1}, "'temperature' parameter"),
        ({"temperature": float("nan")}, "'temperature' parameter"),
        ({"max_tokens": 0}, "'max_tokens' parameter"),
        ({"seed": 1.5}, "'seed' parameter"),
        ({"timeout": 0}, "'timeout' parameter"),
        ({"timeout": float("inf")}, "'timeout' parameter"),
        ({"timeout": 1e300}, "at most 86,400 seconds"),
        ({"retries": -1}, "'retries' parameter"),
        ({"options": {"stream": True}}, "'options' parameter"),
        ({"options": {"seed": 3}}, "'options' parameter"),
        ({"options": {"x": float("nan")}}, "'options' parameter"),
        ({"options": {"x": object()}}, "'options' parameter"),
        ({"options": [1]}, "'options' parameter"),
        ({"cache": 3}, "'cache' parameter"),
    ],
)
def test_rejected_settings(options: dict[str, Any], says: str) -> None:
    settings = {"model": "m", "base_url": "http://localhost/v1"} | options
    with pytest.raises(InvalidInput, match=re.escape(says)) as caught:
        ChatModel(settings.pop("model"), **settings)
    assert KEY not in str(caught.value)


def test_rejected_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="Cannot make the folder"):
        ChatModel("m", base_url="http://localhost/v1", cache=tmp_path / "file")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        SECRET,
        None,
        [SECRET],
        [{"role": "user"}],
        [{"role": "robot", "content": SECRET}],
        [{"role": "user", "content": " "}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": SECRET, "name": "me"}],
        [{"role": "user", "content": f"{SECRET}\ud800"}],
    ],
)
def test_rejected_messages(server: ChatServer, connect: Callable[..., ChatModel], messages: Any) -> None:
    model = connect()
    with pytest.raises(InvalidInput, match=r"'messages' parameter of ChatModel\.complete must be") as caught:
        model.complete(messages)
    assert_discreet(caught.value)
    with pytest.raises(InvalidInput, match=r"'messages' parameter of ChatModel\.complete_all must be"):
        model.complete_all([ASKED, messages])
    assert not server.requests


def test_rejected_batches(connect: Callable[..., ChatModel]) -> None:
    model = connect()
    for conversations, workers in (("text", 1), (None, 1), ([ASKED], 0), ([ASKED], 1.5)):
        with pytest.raises(InvalidInput, match=r"parameter of ChatModel\.complete_all must be"):
            model.complete_all(conversations, workers=workers)


# ---- Proxies and the key.

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@contextlib.contextmanager
def listening() -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers nothing of use and keeps what it was sent: what a proxy would see."""
    seen: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            seen.append(self.request.recv(65536))
            self.request.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}", seen
        proxy.shutdown()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with listening() as (address, seen):
        for name in PROXIES:
            monkeypatch.setenv(name, address)
        yield seen


def test_proxies_environment_see_nothing(
    server: ChatServer, connect: Callable[..., ChatModel], proxy: list[bytes]
) -> None:
    """The proxies of the environment see nothing."""
    import httpx

    with httpx.Client() as client:  # the near miss: a client that takes them
        client.get(server.url)
    assert len(proxy) == 1
    proxy.clear()
    assert connect().complete(ASKED) == "fine"
    assert connect(base_url=server.url.replace("127.0.0.1", "localhost")).complete(ASKED) == "fine"
    with pytest.raises(ChatError):
        connect(base_url="http://host.invalid/v1", allow_http=True, retries=0).complete(ASKED)
    with pytest.raises(ChatError):
        connect(base_url="https://host.invalid/v1", retries=0).complete(ASKED)
    assert proxy == []


def test_proxy_asked_serves_other_machines(server: ChatServer, connect: Callable[..., ChatModel]) -> None:
    """A proxy that is asked for serves other machines alone."""
    with listening() as (address, seen):
        assert connect(proxy=address).complete(ASKED) == "fine"
        assert seen == []
        for base_url in ("http://host.invalid/v1", "https://host.invalid/v1"):
            with pytest.raises(ChatError):
                connect(base_url=base_url, allow_http=True, retries=0, proxy=address).complete(ASKED)
        assert seen[0].startswith(b"POST http://host.invalid/v1/chat/completions ")
        assert seen[1].startswith(b"CONNECT host.invalid:443 ")
        assert KEY.encode() not in seen[1]
    assert len(server.requests) == 1


def test_keys_other_purposes_stay(
    server: ChatServer, connect: Callable[..., ChatModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys for other purposes stay in the environment."""
    names = ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_WEBHOOK_SECRET")
    for name in names:
        monkeypatch.setenv(name, f"value-of-{name}")
    model = connect()
    assert model.complete(ASKED) == "fine"
    (request,) = server.requests
    assert "value-of" not in repr(request)


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""},
        {"base_url": "ftp://host"},
        {"base_url": "https://host.example/v1", "timeout": -1},
        {"proxy": "socks9://user:pass-of-proxy@host"},
        {"proxy": "http://user:pass-of-proxy@host:0"},
        {"api_key": KEY + "\n"},
        {"cache": "\0"},
    ],
)
def test_no_frame_error_shows_key_proxy(options: dict[str, Any]) -> None:
    """No frame of an error shows the key or the proxy."""
    arguments = {"base_url": "https://host.example/v1", "api_key": KEY, "proxy": "http://u:pass-of-proxy@host"}
    arguments |= {"model": "m"} | options
    with pytest.raises(ScoreShieldError) as caught:
        ChatModel(**arguments)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    error: BaseException | None = caught.value
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if "scoreshield" in frame.f_code.co_filename and "tests" not in frame.f_code.co_filename:
                # A model that is half made has no repr of its own.
                shown = repr({name: vars(value) if name == "self" else value for name, value in frame.f_locals.items()})
                assert KEY not in shown
                assert "pass-of-proxy" not in shown
        assert KEY not in str(error) + repr(error)
        assert "pass-of-proxy" not in str(error) + repr(error)
        error = error.__context__
