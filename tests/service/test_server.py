"""The service as a process: the one command, restarts, kill -9, two replicas, TLS, and the end by SIGTERM."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

import httpx
import numpy as np
import yaml
from service_support import make_query, open_service, write_collection, write_policy

from scoreshield import cli

SEARCH = "/v1/collections/docs/search"
GAUSSIAN = ("serve", "--collection", "d=docs.npz", "--epsilon", "1", "--budget", "3", "--mechanism", "gaussian")
COMMAND = [
    "--collection",
    "docs=docs.npz",
    "--epsilon",
    "1",
    "--budget",
    "3",
    "--mechanism",
    "staircase",
    "--port",
    "0",
]


@dataclass
class Running:
    """A service in a process of its own."""

    process: subprocess.Popen[str]
    address: str
    key: str | None
    lines: list[str]

    def stop(self, signal_: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(signal_)
        return self.process.wait(timeout=20)


def run_cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scoreshield", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=make_environment(),
        timeout=60,
        check=False,
    )


def make_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def start(folder: Path, *arguments: str) -> Iterator[Running]:
    """Start ``scoreshield serve`` and read what it prints until it has named its address and keys."""
    log = (folder / "log.txt").open("a")
    process = subprocess.Popen(
        [sys.executable, "-m", "scoreshield", "serve", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=make_environment(),
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Public key"):
            break
    text = "".join(lines)
    assert "Serving" in text, (folder / "log.txt").read_text()
    found = re.search(r"shown once: (\S+)", text)
    try:
        yield Running(process, text.split(" at ")[1].split()[0], found[1] if found else None, lines)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        log.close()


def post(running: Running, key: str | None, body: Any, **settings: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, **settings) as client:
        return client.post(running.address + SEARCH, json=body, headers={"authorization": f"Bearer {key}"}, timeout=20)


def test_one_command(tmp_path: Path) -> None:
    """One command serves, shows a key once, keeps its answers over kill -9 and SIGTERM, and ends with code 0."""
    write_collection(tmp_path / "docs.npz")
    body = {"query": make_query(1), "k": 5}
    with start(tmp_path, *COMMAND) as running:
        key = running.key
        assert any("curl" in line for line in running.lines)
        assert "/v1/vector_stores/" not in "".join(running.lines)  # there is no embedder
        said = "".join(running.lines)
        assert "One search answer: " in said  # what an attacker finds out, as --dry-run says
        assert "The whole budget: " in said
        first = post(running, key, body)
        assert first.status_code == 200, first.text
        with httpx.Client(trust_env=False, base_url=running.address) as client:
            assert client.get("/livez").json() == {"status": "alive"}
            assert client.get("/readyz").json() == {"status": "ready"}
            assert "server" not in client.get("/livez").headers
            shown = re.search(r"Sign in at (\S+) as admin with the password, shown once: (\S+)", "".join(running.lines))
            assert shown is not None
            token = re.search('name="form_token" value="([0-9a-f]+)"', client.get(shown[1]).text)
            assert token is not None
            fields = {"name": "admin", "password": shown[2], "form_token": token[1]}
            # Without a proxy in the policy, no one chooses the address that attempts are counted for.
            entered = client.post(shown[1], data=fields, headers={"x-forwarded-for": "203.0.113.9"})
            assert (entered.status_code, entered.headers["location"]) == (303, "/dashboard")
            listed = client.get("/v1/keys").json()["keys"]
            assert [one["caller"] for one in listed] == ["admin"]
        running.stop(signal.SIGKILL)
    with start(tmp_path, *COMMAND) as running:
        assert running.key is None  # it was shown at the first start
        assert "'scoreshield serve keys create --caller admin' makes another" in "".join(running.lines)
        assert shown[2] not in "".join(running.lines)
        assert post(running, key, body).content == first.content
        with ThreadPoolExecutor(30) as pool:  # racing clients: two more answers fit
            raced = list(pool.map(lambda seed: post(running, key, {"query": make_query(seed)}), range(100, 130)))
        assert sorted(answer.status_code for answer in raced) == [200] * 2 + [403] * 28
        refused = post(running, key, {"query": make_query(4)})
        assert (refused.status_code, refused.json()["code"]) == (403, "budget_exhausted")
        assert running.stop() == 0
    for line in (tmp_path / "log.txt").read_text().splitlines():
        facts = json.loads(line)
        assert facts.keys() >= {"time", "level", "event"}
        assert key not in line
        assert shown[2] not in line
        assert "203.0.113.9" not in line
    assert oct((tmp_path / "scoreshield-installation.key").stat().st_mode)[-3:] == "600"
    assert oct((tmp_path / "scoreshield-service.db").stat().st_mode)[-3:] == "600"
    done = run_cli(tmp_path, "ledger", "verify", "sqlite:///scoreshield-service-docs.ledger.db")
    assert done.returncode == 0, done.stderr
    (tmp_path / "answer.json").write_bytes(first.content)
    public = first.json()["signature"]["key"]
    assert run_cli(tmp_path, "verify", "answer.json", "--public-key", public).returncode == 0
    assert run_cli(tmp_path, "verify", "answer.json", "--public-key", "0" * 64).returncode == 1
    assert run_cli(tmp_path, "verify", "answer.json").returncode == 2
    (tmp_path / "answer.json").write_bytes(first.content.replace(b'"version":1', b'"version":2'))
    assert run_cli(tmp_path, "verify", "answer.json", "--public-key", public).returncode == 1


def test_starts_name_the_commands_for_their_keys(tmp_path: Path) -> None:
    """A start in another folder and one with a policy print commands that work for keys and people as they are."""
    write_collection(tmp_path / "docs.npz")
    with np.load(tmp_path / "docs.npz") as found:
        np.savez(tmp_path / "several.npz", vectors=found["embeddings"], others=found["embeddings"][:3])
    (tmp_path / "state").mkdir()
    command = [*(part.replace("docs.npz", "several.npz") for part in COMMAND), "--folder", "state"]
    unnamed = run_cli(tmp_path, "serve", *command)
    assert (unnamed.returncode, "several arrays" in unnamed.stderr) == (2, True)
    for is_first in (True, False):
        with start(tmp_path, *command, "--array", "vectors") as running:
            said = "".join(running.lines)
            assert (running.key is not None) == is_first
            assert running.stop() == 0
    printed = re.search("'(scoreshield serve keys create [^']+)'", said)
    assert printed is not None
    database = f"sqlite:///{tmp_path / 'state' / 'scoreshield-service.db'}"
    assert said.count(f" --database {database}'") == 2  # for keys and for passwords
    done = run_cli(tmp_path, *shlex.split(printed[1])[1:])
    assert (done.returncode, "for admin, shown once" in done.stdout, done.stderr.count("NOTE")) == (0, True, 0)

    content = write_policy()
    content["installation"]["port"] = 0
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(content))
    for is_first in (True, False):
        with start(tmp_path, "--config", "policy.yaml") as running:
            said = "".join(running.lines)
            assert ("There is no key yet. 'scoreshield serve keys create --caller app --config" in said) == is_first
            assert ("No one can sign in yet. 'scoreshield serve people create NAME" in said) == is_first
            assert ("/sign-in." in said) != is_first
            assert running.stop() == 0
        if is_first:
            made = run_cli(tmp_path, "serve", "keys", "create", "--config", "policy.yaml", "--caller", "app")
            assert made.returncode == 0, made.stderr
            add = ["people", "create", "ada", "--role", "officer", "--all-collections", "--config", "policy.yaml"]
            added = subprocess.run(
                [sys.executable, "-m", "scoreshield", "serve", *add],
                cwd=tmp_path,
                input="a quiet lake at noon\n",
                text=True,
                env=make_environment(),
                timeout=60,
                check=False,
            )
            assert added.returncode == 0


def test_two_replicas_keys_and_tls(tmp_path: Path) -> None:
    """Two processes on one database give the same bytes; keys are made and revoked by command; TLS by files."""
    make_certificate(tmp_path)
    content = write_policy()
    content["installation"]["tls"] = {"certificate": "cert.pem", "key": "key.pem"}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(content))
    write_collection(tmp_path / "docs.npz")
    made = run_cli(tmp_path, "serve", "keys", "create", "--config", "policy.yaml", "--caller", "app", "--json")
    assert made.returncode == 0, made.stderr
    key = json.loads(made.stdout)
    more = ["--config", "policy.yaml", "--days", "9", "--json"]
    narrow = run_cli(tmp_path, "serve", "keys", "create", "--caller", "app", "--action", "search", *more)
    rotated = run_cli(
        tmp_path, "serve", "keys", "rotate", json.loads(narrow.stdout)["prefix"], *more[:3], "30", "--json"
    )
    assert json.loads(narrow.stdout)["expires"] < json.loads(rotated.stdout)["expires"]
    checked = run_cli(tmp_path, "serve", "--config", "policy.yaml", "--check")
    assert (checked.returncode, checked.stdout) == (0, "The policy is consistent.\n")
    arguments = ["--config", "policy.yaml"]
    with start(tmp_path, *arguments) as one, start(tmp_path, *arguments) as two:
        assert one.address.startswith("https://")
        body = {"query": make_query(1)}
        answers = [post(replica, key["key"], body, verify=make_context(tmp_path)) for replica in (one, two)]
        assert answers[0].status_code == 200
        assert answers[0].content == answers[1].content
        assert answers[0].headers["strict-transport-security"].startswith("max-age")
        assert run_cli(tmp_path, "serve", "keys", "revoke", key["prefix"], "--config", "policy.yaml").returncode == 0
        import time

        time.sleep(1.2)  # longer than a replica remembers a key
        late = post(two, key["key"], body, verify=make_context(tmp_path))
        assert (late.status_code, late.json()["code"]) == (401, "key_revoked")
        assert (one.stop(), two.stop(signal.SIGINT)) == (0, 0) or two.process.returncode in (0, 130, -2)
    assert open_service(tmp_path, content).collections["docs"].account.spent == 1.0


def test_commands_explain_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong options and contradictions are one line each, and make nothing."""

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["scoreshield", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        shown = capsys.readouterr()
        return int(stopped.value.code or 0), shown.out + shown.err

    monkeypatch.chdir(tmp_path)
    write_collection(tmp_path / "docs.npz")
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(write_policy(collection={"expected_queries": 99})))
    cases = {
        ("serve", "--collection", "docs=docs.npz"): "needs --epsilon",
        ("serve", "--collection", "docs"): "--epsilon",
        ("serve", "--collection", "docs", "--epsilon", "1", "--budget", "3"): "NAME=FILE",
        ("serve", "--collection", "d=x.npz", "--epsilon", "1", "--budget", "3", "--port", "0"): "does not exist",
        ("serve", *COMMAND, "--folder", "elsewhere"): "There is no folder elsewhere",
        ("serve", "--config", "policy.yaml", "--check"): "expects 99 queries",
        ("serve", "--config", "policy.yaml", "--collection", "a=b"): "exclude each other",
        ("serve", "--config", "policy.yaml", "--embedder", "hashing"): "--embedder is a setting of the policy file",
        ("serve", "--config", "policy.yaml", "--port", "8741", "--budget", "1", "--check"): "--budget and --port are",
        ("serve", "--collection", "Docs=docs.npz", "--epsilon", "1", "--budget", "3"): "small letters, digits",
        ("serve", "--collection", "docs=docs.npz", "--epsilon", "1", "--budget", "5000"): "limits no attacker",
        (*GAUSSIAN, "--check"): "--mechanism gaussian needs --delta",
        ("serve", "keys", "create", "--caller", "app", "--action", "entries", "--config", "policy.yaml"): "not grant",
        ("serve", "--collection", "docs=docs.npz", "--records", "5"): "are for --dummy",
        ("serve", "--dummy", "--port", "0"): "needs records and dimension",
        ("serve", "keys", "create", "--caller", "nobody", "--config", "policy.yaml"): "no caller",
        ("serve", "keys", "create", "--caller", "nobody"): "only the caller admin",
        ("serve", "keys", "revoke", "00000000", "--config", "policy.yaml"): "no database of a service",
    }
    for arguments, sentence in cases.items():
        code, text = call(*arguments)
        assert code == 2, (arguments, text)
        assert sentence in text
        assert "Traceback" not in text
    assert not list(tmp_path.glob("*.ledger.db"))
    for arguments in (("list",), ("list", "--config", "policy.yaml")):
        assert call("serve", "keys", *arguments)[0] == 2  # no database yet, and none is made
    code, text = call("serve", "keys", "create", "--caller", "admin")
    assert (code, "scoreshield-service.db is new" in text) == (0, True)
    code, text = call("serve", "keys", "create", "--caller", "admin")
    assert (code, "NOTE" in text) == (0, False)
    code, text = call("serve", "keys", "list")
    assert (code, "expires never" in text) == (0, True)
    code, text = call("serve", "people", "list")
    assert (code, text) == (0, "There is no person yet; 'scoreshield serve people create NAME' adds one.\n")
    code, text = call("serve", *COMMAND, "--dry-run")
    assert (code, "3 queries fit" in text) == (0, True)
    assert not list(tmp_path.glob("*.ledger.db"))


@pytest.mark.skipif(os.name != "posix", reason="needs file modes of POSIX")
def test_secrets_that_everyone_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command warns of files with secrets that everyone may read, and shows no secret."""
    content = write_policy()
    content["installation"] |= {
        "database": "postgresql://service:hidden-password@localhost/service",
        "tls": {"certificate": "cert.pem", "key": "key.pem"},
    }
    write_collection(tmp_path / "docs.npz")
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("")
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["scoreshield", "serve", "--config", "policy.yaml", "--check"])
    for mode, found in ((0o644, 2), (0o640, 0)):
        for name in ("key.pem", "policy.yaml"):
            (tmp_path / name).chmod(mode)
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        shown = capsys.readouterr()
        assert not stopped.value.code
        assert shown.err.count("Everyone on this computer may read") == found
        assert "hidden-password" not in shown.err + shown.out


def make_certificate(folder: Path) -> None:
    """Make a certificate for this computer, which signs itself."""
    from datetime import UTC, datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))


def make_context(folder: Path) -> Any:
    import ssl

    return ssl.create_default_context(cafile=folder / "cert.pem")


def test_reload_by_signal(tmp_path: Path) -> None:
    """SIGHUP reads the policy and the data again; a policy that became wrong changes nothing."""
    if not hasattr(signal, "SIGHUP"):
        pytest.skip("needs signals")
    write_collection(tmp_path / "docs.npz")
    content = write_policy()
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(content))
    key = open_service(tmp_path, content).keys.create("app")[1]

    def wait_for(event: str, number: int) -> None:
        end = time.monotonic() + 20
        while (tmp_path / "log.txt").read_text().count(f'"{event}"') < number:
            assert time.monotonic() < end, (tmp_path / "log.txt").read_text()
            time.sleep(0.02)

    with start(tmp_path, "--config", "policy.yaml") as running:

        def ask() -> Any:
            headers = {"authorization": f"Bearer {key}"}
            with httpx.Client(trust_env=False, base_url=running.address, headers=headers, timeout=20) as client:
                return client.post(SEARCH, json={"query": make_query(1)}).json()

        assert ask()["version"] == 1
        write_collection(tmp_path / "docs.npz", seed=1)
        running.process.send_signal(signal.SIGHUP)
        wait_for("reloaded", 1)
        assert ask()["version"] == 2
        (tmp_path / "policy.yaml").write_text("collections: {}")
        running.process.send_signal(signal.SIGHUP)
        wait_for("reload failed", 1)
        assert ask()["version"] == 2
        content["callers"]["app"]["collections"]["docs"]["actions"] = ["matches"]
        (tmp_path / "policy.yaml").write_text(yaml.safe_dump(content))
        running.process.send_signal(signal.SIGHUP)
        wait_for("reloaded", 2)
        assert ask()["code"] == "action_not_allowed"
        assert running.stop() == 0


def test_dummy_command(tmp_path: Path) -> None:
    """One command serves a dummy without a file, takes text queries by an embedder, and leaves no file behind."""
    arguments = ("--dummy", "--records", "50", "--dimension", "32", "--embedder", "hashing", "--port", "0")
    with start(tmp_path, *arguments) as running:
        assert "Dummy mode" in "".join(running.lines)
        headers = {"authorization": f"Bearer {running.key}"}
        with httpx.Client(trust_env=False, base_url=running.address, headers=headers, timeout=20) as client:
            listed = client.get("/v1/collections").json()["collections"]
            assert [(one["name"], one["records"], one["dimension"], one["dummy"]) for one in listed] == [
                ("docs", 50, 32, True)
            ]
            found = client.post("/v1/vector_stores/docs/search", json={"query": "a text"}).json()
            assert found["scoreshield"]["dummy"] is True
            assert client.get("/metrics").status_code == 200
        assert running.stop() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


def test_dummy_of_a_policy(tmp_path: Path) -> None:
    """A dummy of a policy file prints a key for each caller, and makes no file beside the policy."""
    write_collection(tmp_path / "docs.npz")
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(write_policy()))
    with start(tmp_path, "--config", "policy.yaml", "--dummy") as running:
        keys = dict(re.findall(r"Dummy key of (\w+): (\S+)", "".join(running.lines)))
        assert set(keys) == {"app", "officer"}
        assert post(running, keys["app"], {"query": make_query(1)}).json()["dummy"] is True
        assert running.stop() == 0
    assert {path.name for path in tmp_path.iterdir()} == {"docs.npz", "log.txt", "policy.yaml"}


def test_text_queries_by_command(tmp_path: Path) -> None:
    """--embedder and --text make a collection of one command answer texts."""
    from scoreshield.service.embedding import hash_texts

    texts = ["The warranty lasts two years.", "Opening hours are from nine to five.", "Parking is free."] * 10
    np.savez(tmp_path / "docs.npz", embeddings=hash_texts(texts, 64), body=np.array(texts))
    options = ("--field", "body", "--text", "body", "--embedder", "hashing")
    with start(tmp_path, *COMMAND, *options) as running:
        headers = {"authorization": f"Bearer {running.key}"}
        with httpx.Client(trust_env=False, base_url=running.address, headers=headers, timeout=20) as client:
            found = client.post("/v1/vector_stores/docs/search", json={"query": "warranty"})
        assert found.status_code == 200, found.text
        assert found.json()["data"][0]["content"][0]["text"] in texts
        assert running.stop() == 0
