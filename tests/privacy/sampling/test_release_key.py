"""Release keys: the same noise for the same facts, other noise for any other, and no trace of the key."""

from __future__ import annotations

import copy
import hashlib
import hmac
import logging
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

import scoreshield as ss
from scoreshield.privacy.sampling.stream import KeyedStream, ReleaseKey, name_sampler, open_stream
from scoreshield.releases.matches import prepare_matches
from scoreshield.releases.scores import prepare_scores
from scoreshield.releases.top_k import prepare_top_k

SECRET = bytes(range(32))
FACTS = {"release": "entry 1", "snapshot": "state 1", "mechanism": "staircase"}


def make_key(secret: bytes = SECRET, **facts: str) -> ReleaseKey:
    return ReleaseKey(secret, **{**FACTS, **facts})


def test_same_facts_same_words() -> None:
    """The same key and facts give the same words, in any blocks; any other fact gives others."""
    words = make_key().open_stream().words(1000)
    stream = make_key().open_stream()
    assert np.array_equal(np.concatenate([stream.words(count) for count in (1, 7, 492, 500)]), words)
    others = [make_key(**{name: "other"}) for name in FACTS] + [make_key(bytes(32))]
    # Two parts whose joined texts are equal are two lists of facts.
    others += [make_key(release="entry 1s", snapshot="tate 1"), make_key(release="", snapshot="entry 1state 1")]
    for other in others:
        assert (other.open_stream().words(1000) == words).mean() < 0.01


def test_words_are_those_of_the_definition() -> None:
    """HKDF-SHA256 and AES-256-CTR, computed by hand."""
    parts = [b"scoreshield release key 1", *(FACTS[name].encode() for name in ("release", "snapshot", "mechanism"))]
    info = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    extracted = hmac.digest(bytes(32), SECRET, "sha256")
    first = hmac.digest(extracted, info + b"\x01", hashlib.sha256)
    second = hmac.digest(extracted, first + info + b"\x02", hashlib.sha256)
    cipher = Cipher(algorithms.AES(first), modes.CTR(second[:16])).encryptor()
    expected = np.frombuffer(cipher.update(bytes(800)), dtype="<i8")
    assert np.array_equal(make_key().open_stream().words(100), expected)


def test_key_opens_one_stream() -> None:
    """A second release with the same object raises an error: its noise would be that of the first."""
    key = make_key()
    assert isinstance(open_stream(key), KeyedStream)
    with pytest.raises(ss.InvalidInput, match="used before"):
        open_stream(key)


def test_key_leaves_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    """Neither repr, pickles, copies, errors nor attributes show the key."""
    key = make_key()
    stream = key.open_stream()
    shown = [repr(key), str(key), repr(stream)]
    for target in (make_key(), stream):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises((ss.InvalidInput, TypeError)) as caught:
                attempt(target)
            shown.append(str(caught.value))
    with pytest.raises(ss.InvalidInput) as caught:
        ReleaseKey(SECRET[:31], **FACTS)
    shown.append(str(caught.value))
    logging.getLogger("test").warning("%s %r", key, key)
    shown.append(caplog.text)
    for text in shown:
        assert SECRET.hex() not in text
        assert repr(SECRET)[2:20] not in text


ROWS = np.random.default_rng(0).standard_normal((200, 8))
QUERY = np.random.default_rng(1).standard_normal(8)
PREPARE: dict[str, Callable[[Any], Any]] = {
    "staircase": lambda rng: prepare_scores(ROWS, QUERY, epsilon=1.0, mechanism="staircase", rng=rng),
    "gaussian": lambda rng: prepare_scores(ROWS, QUERY, epsilon=1.0, delta=1e-6, mechanism="gaussian", rng=rng),
    "anchored": lambda rng: prepare_scores(ROWS, QUERY, epsilon=8.0, mechanism="anchored", rng=rng),
    "matches": lambda rng: prepare_matches(ROWS, QUERY, 0.2, epsilon=1.0, refine=0.5, rng=rng),
    "top-k": lambda rng: prepare_top_k(ROWS, QUERY, 5, epsilon=5.0, rng=rng),
    "index": lambda rng: _prepare_index(rng),
}


def _prepare_index(rng: Any) -> Any:
    from scoreshield.releases.index import prepare_index

    return prepare_index(ROWS, epsilon=10.0, rng=rng)


@pytest.mark.filterwarnings("ignore::scoreshield.errors.TailShapeWarning")  # of rows with few dimensions
@pytest.mark.parametrize("name", PREPARE)
def test_release_repeats_and_is_exact(name: str) -> None:
    """A release by a key repeats bit for bit, has the guarantee of the secure sampler, and a ledger takes it."""
    first, again, other = (
        (lambda pending: pending.finish(pending.compute()))(PREPARE[name](key))
        for key in (make_key(), make_key(), make_key(snapshot="state 2"))
    )
    assert first == again != other
    assert first.guarantee == PREPARE[name](None).guarantee
    assert (name_sampler(make_key()), first.guarantee.sampler) == ("exact", "exact")


def test_ledger_charges_keyed_release(tmp_path: Any) -> None:
    account = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=3.0, delta=0.0).account("rows")
    PREPARE["staircase"](make_key()).release(account)
    assert account.spent == 1.0


def test_search_takes_no_key() -> None:
    """A search makes many releases, so it takes no key of one."""
    with pytest.raises(ss.InvalidInput, match="which makes many releases"):
        ss.PrivateSearch(ROWS, epsilon=5.0, rng=make_key())
