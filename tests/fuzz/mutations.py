"""Ways to damage a valid input: bytes, archives, JSON values, texts and SQL tables. Each draws from one generator."""

from __future__ import annotations

import io
import json
import random
import re
import sqlite3
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

#: Values that readers of numbers and texts have stumbled over.
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, -1e308, 5e-324, 0.1, -0.0, "", " ",
    "nan", "\x00", "\x1b[2J", "\u202e", "é", "\U0001f600", "9" * 5000, "x" * 3000, "../x", "[", "{}", [], {}, [[]],
    [None], {"": None}, [0] * 300, {"format": 1}, "NaN", "Infinity", "1e999", "scores", "gaussian", "private",
)  # fmt: skip
_INTERESTING = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x80",
    b"PK\x03\x04",
    b"\n",
    b'"',
)


def of_bytes(rng: random.Random, data: bytes) -> bytes:
    """A few flips, cuts, insertions, repetitions and exchanges."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if not content:
            return bytes(content)
        at, length = rng.randrange(len(content)), rng.choice((1, 1, 2, 4, 8, 64, 512))
        match rng.randrange(7):
            case 0:
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                content[at] = rng.randrange(256)
            case 2:
                del content[at:]
            case 3:
                del content[at : at + length]
            case 4:
                content[at:at] = rng.choice(_INTERESTING) * rng.choice((1, 1, 3, 100))
            case 5:
                content[at:at] = content[at : at + length]
            case _:
                content[at : at + length] = rng.randbytes(length)
    return bytes(content)


def of_json(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """The same value with one node replaced, removed, doubled or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        changed, name = dict(value), rng.choice(sorted(value))
        match rng.randrange(8):
            case 0:
                del changed[name]
            case 1:
                changed[rng.choice(("", "extra", name + " ", name.upper()))] = changed[name]
            case _:
                changed[name] = of_json(rng, value[name], depth + 1)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.9:
        items, at = list(value), rng.randrange(len(value))
        match rng.randrange(8):
            case 0:
                del items[at]
            case 1:
                items.insert(at, items[at])
            case _:
                items[at] = of_json(rng, value[at], depth + 1)
        return items
    if isinstance(value, float | int) and not isinstance(value, bool) and rng.random() < 0.4:
        return rng.choice((value * 2, -value, value + 1, value / 3, value * 1e200, 1e-300, 10**30))
    if isinstance(value, str) and value and rng.random() < 0.3:
        return of_bytes(rng, value.encode()).decode("utf-8", "replace")
    return rng.choice(HOSTILE)


def dumped(rng: random.Random, value: Any) -> str:
    """A JSON text, perhaps with what JSON does not know, or nested too deeply."""
    text = json.dumps(value)
    match rng.randrange(20):
        case 0:
            return re.sub(r"\d+", rng.choice(("NaN", "Infinity", "1e999", "9" * 5000, "-")), text, count=1)
        case 1:
            return "[" * 50_000 + text
        case 2:
            return of_bytes(rng, text.encode()).decode("latin-1")
    return text


def of_lines(rng: random.Random, data: bytes) -> bytes:
    """JSON lines with one of them damaged."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        lines[at] = dumped(rng, of_json(rng, json.loads(lines[at]))).encode("utf-8", "surrogatepass")
    except ValueError:
        lines[at] = of_bytes(rng, lines[at])
    if rng.random() < 0.1:
        lines = lines[:at] + lines[at : at + 1] * rng.choice((0, 2, 50)) + lines[at + 1 :]
    return b"\n".join(lines)


def of_text(rng: random.Random, data: bytes) -> bytes:
    """A text with words exchanged for hostile ones."""
    words = re.split(r"([\s,:\[\]{}]+)", data.decode("utf-8", "replace"))
    extra = (
        "&a",
        "*a",
        "!!python/object:os.system",
        "!!str",
        "<<",
        "[" * 40,
        "{" * 3000,
        "- ",
        "? ",
        "%YAML 1.1",
        "---",
    )
    for _ in range(rng.choice((1, 1, 2, 5))):
        words[rng.randrange(len(words))] = str(rng.choice((*HOSTILE, *extra)))
    return "".join(words).encode("utf-8", "surrogatepass")


def of_npy(rng: random.Random, data: bytes) -> bytes:
    """An .npy file with another header, or damaged bytes."""
    if rng.random() < 0.5:
        return of_bytes(rng, data)
    shape = rng.choice(
        ("(3, 5)", "(10**9,)", "(1000000000000, 1000000000000)", "(-1, 5)", "()", "(0, 5)", "(5,)", "(", "3")
    )
    kind = rng.choice(
        ("<f4", "<f8", ">f8", "|O", "<U0", "<U9", "|V8", "<M8[s]", "|b1", "<c16", "<i8", "<f2", "zz", "|S3")
    )
    order = rng.choice(("True", "False", "3"))
    text = f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}}}"
    text = text if rng.random() < 0.9 else text * rng.choice((0, 2, 200))
    body = data[128:] if rng.random() < 0.7 else rng.randbytes(rng.choice((0, 8, 60, 120, 4000)))
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + size + text.encode() + body


def of_zip(rng: random.Random, data: bytes) -> bytes:
    """An .npz file: damaged bytes, or members exchanged, renamed, doubled, removed or changed inside."""
    if rng.random() < 0.4:
        return of_bytes(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = [(name, archive.read(name)) for name in archive.namelist()]
    at = rng.randrange(len(parts))
    name, content = parts[at]
    match rng.randrange(8):
        case 0:
            del parts[at]
        case 1:
            parts.append((name, content))
        case 2:
            parts[at] = (
                str(rng.choice((name + "x", "x.npy", "../x.npy", "", "\x1b[2J.npy", name.removesuffix(".npy")))),
                content,
            )
        case 3:
            parts[at] = (name, rng.choice(parts)[1])
        case _:
            parts[at] = (name, of_meta(rng, content) if name == "meta.npy" else of_npy(rng, content))
    method = rng.choice(
        (zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    )
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in parts:
            archive.writestr(name or "empty", content)
    return buffer.getvalue()


def of_meta(rng: random.Random, content: bytes) -> bytes:
    """The JSON text of a release inside its array, with one value changed."""
    meta = json.loads(str(np.load(io.BytesIO(content))))
    text = dumped(rng, of_json(rng, meta)).replace("\x00", "")
    buffer = io.BytesIO()
    np.save(buffer, np.array(text or " "))
    return buffer.getvalue()


def of_tables(rng: random.Random, data: bytes, folder: Path) -> bytes:
    """An SQLite file with rows, tables, triggers or views changed by SQL, or with damaged bytes."""
    if rng.random() < 0.5:
        return of_bytes(rng, data)
    path = folder / "edited.db"
    path.write_bytes(data)
    connection = sqlite3.connect(path)
    try:
        _edit(rng, connection)
        connection.commit()
    except (sqlite3.Error, OverflowError, UnicodeEncodeError):
        connection.rollback()
    finally:
        connection.close()
    return path.read_bytes()


def _edit(rng: random.Random, connection: sqlite3.Connection) -> None:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    table = rng.choice(tables)
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    column, other = rng.choice(columns), rng.choice(columns)
    plain = [value for value in HOSTILE if value is None or isinstance(value, int | float | str)]
    value = rng.choice([one for one in plain if not isinstance(one, int) or -(2**63) <= one < 2**63])
    row = f'rowid = (SELECT rowid FROM "{table}" ORDER BY rowid LIMIT 1 OFFSET {rng.randrange(3)})'
    statements: list[Callable[[], Any]] = [
        lambda: connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {row}', (value,)),
        lambda: connection.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,)),
        lambda: connection.execute(f'UPDATE "{table}" SET "{column}" = "{other}" WHERE {row}'),
        lambda: connection.execute(f'DELETE FROM "{table}" WHERE {row}'),
        lambda: connection.execute(f'DELETE FROM "{table}"'),
        lambda: connection.execute(f'DROP TABLE "{table}"'),
        lambda: connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"'),
        lambda: connection.execute(f'ALTER TABLE "{table}" RENAME TO "renamed"'),
        lambda: connection.execute(f'ALTER TABLE "{table}" ADD COLUMN more TEXT'),
        lambda: connection.execute(f'CREATE TRIGGER t AFTER INSERT ON "{table}" BEGIN DELETE FROM "{table}"; END'),
        lambda: connection.execute(f'CREATE VIEW v AS SELECT * FROM "{table}"'),
        lambda: connection.execute(f"PRAGMA user_version = {rng.randrange(2**31)}"),
        lambda: connection.execute(f"PRAGMA application_id = {rng.randrange(2**31)}"),
    ]
    rng.choice(statements)()
