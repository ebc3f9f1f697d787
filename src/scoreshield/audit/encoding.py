"""From outputs of any kind to rows of numbers: what a test statistic can read.

A release may return numbers, arrays, strings, lists, dicts, sets of ids, objects, nothing, or an exception. Each of
these can leak: by its values, by its type and length, by which ids and words it names and in which order. An output is
first converted to plain values (`scoreshield.audit.plain_values`) and then taken apart into

* its form: types, lengths, texts, and the kind of an exception;
* the words and ids that it names, in order;
* for each id, its first place and the number beside it;
* all numbers, in order, and those that a key or a word stands before;
* how often each word of its texts, each pair of a key and a text, and each type occurs.

Forms, orders and words become tokens, numbers that only stand for a text. A value that an output does not have is NaN.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.audit.plain_values import LONGEST_ARRAY, OutputObject, is_short_array, simplify
from scoreshield.audit.plain_values import Failure as Failure
from scoreshield.audit.statistics import measure_moves

Float = NDArray[np.float64]
Flags = NDArray[np.bool_]

#: The most ids, places of words, numbers, labels, and words of texts of an output with another form than an array that
#: get columns of their own.
_IDS, _WORDS, _NUMBERS, _LABELS, _VOCABULARY = 256, 256, 2048, 256, 256
#: The letters at the beginning and at the end of a text that get columns of their own.
_FIRST_LETTERS, _LAST_LETTERS = 64, 16
#: The most candidates for columns of one kind, and the most labels and words of one output.
_CANDIDATES, _MOST_LABELS, _MOST_WORDS = 4096, 1024, 4096
#: With this number of examples, a word that only one of them has gets no column.
_MANY_EXAMPLES = 8
#: Whole numbers from here on are not exact as floats.
_LARGE = 2**53
#: How deep a list that is nothing but numbers may be nested.
_DIMENSIONS = 6
_PYTHON_NUMBERS = frozenset({bool, int, float})
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b")
#: Words of a text, and a word with the number or the word that follows it.
_WORD = re.compile(r"\w+")
#: The length of a word is bounded, because a search in one long word would take its length squared.
_LABELLED = re.compile(r"([^\W\d]\w{0,63})[\"']?\s*[=:,]?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_PAIR = re.compile(r"(?<!\w)(\w++)[\"']?\s*[=:]\s*[\"']?(\w+)")


@dataclass
class OutputParts:
    """One output, taken apart.

    Attributes:
        form: Types, lengths and texts.
        numbers: All numbers, in order.
        words: All ids and words that are named, in order, and whole numbers that no float holds.
        places: The place of each id among the ids, in the order in which they were first named.
        values: The number beside an id, where there is one.
        structure: The form without texts.
        labels: The first number after each word of a text, and under each path of keys.
        counts: How often each word of a text, each pair of a key and a text, and each type occurs.
        texts: The first and the last text.
    """

    form: list[str] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    structure: list[str] = field(default_factory=list)
    labels: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)

    def name(self, key: Any, value: float | None = None) -> None:
        """Note an id, and the number beside it."""
        text = str(key)
        self.words.append(text)
        self.places.setdefault(text, len(self.places))
        if value is not None:
            self.values.setdefault(text, value)

    def add_type(self, name: str, size: str = "") -> None:
        """Note the type of a value, and its length or shape."""
        self.form.append(name + size)
        self.structure.append(name + size)
        self.counts[f"type {name}"] += 1

    def add_number(self, value: float, path: str) -> None:
        """Note a number, and the path of keys that leads to it."""
        self.numbers.append(value)
        if path and len(self.labels) < _MOST_LABELS:
            self.labels.setdefault(path, value)

    def add_parts(self, other: OutputParts) -> None:
        """Note all parts of another output, which follows."""
        self.form += other.form
        self.numbers += other.numbers
        self.words += other.words
        for key in other.places:
            self.places.setdefault(key, len(self.places))
        self.values = other.values | self.values
        self.structure += other.structure
        self.labels = other.labels | self.labels
        self.counts += other.counts
        self.texts += other.texts


def take_apart(output: Any, records: int) -> OutputParts:
    """Take an output apart.

    Args:
        output: The output, of any type, or a `Failure`.
        records: How many records the collection has: whole numbers below that may be positions.
    """
    if isinstance(output, OutputParts):
        return output
    if isinstance(output, list) and any(isinstance(one, OutputParts) for one in output):
        return _join([take_apart(one, records) for one in output])
    parts = OutputParts()
    _read(simplify(output), records, parts, "")
    return parts


def prepare_output(output: Any, records: int) -> Any:
    """Convert an output, as soon as it is drawn, to what an `OutputReader` reads.

    Iterators can be read once only, and large outputs must not be kept.

    Returns:
        Numbers, or a list or object of numbers; a `Failure`; or the parts of any other output.
    """
    kind = type(output)
    if kind is float:
        return output
    if kind is np.ndarray and is_short_array(output):
        return output.copy()  # a release may write its next output to the same array
    if kind is list and len(output) <= LONGEST_ARRAY and set(map(type, output)) <= _PYTHON_NUMBERS:
        return output.copy()
    plain = simplify(output)
    if isinstance(plain, np.ndarray | float | int | Failure) or to_numbers(plain) is not None:
        return plain
    parts = OutputParts()
    _read(plain, records, parts, "")
    return parts


def to_numbers(output: Any) -> Float | None:
    """Convert an output that is nothing but numbers to a flat array; None for other outputs."""
    if isinstance(output, np.ndarray):
        return None if isinstance(output, np.ma.MaskedArray) else _to_array(output)
    if isinstance(output, bool | int | float | np.generic):
        return None if isinstance(output, str | bytes) else _to_array(output)
    if isinstance(output, list | tuple):
        return _to_array(_take_items(output)) if _is_numeric(output, _DIMENSIONS) else None
    if isinstance(output, OutputObject):
        return to_numbers(output.content) if isinstance(output.content, np.ndarray | list | tuple) else None
    if isinstance(output, str | bytes | Mapping | set | frozenset | Failure | OutputParts | type(None)):
        return None
    try:
        return _to_array(_validation.to_array(output))
    except Exception:  # the class of the output is not our code
        return None


def _is_numeric(items: Sequence[Any], depth: int) -> bool:
    """Whether a sequence, and those within it, hold nothing but numbers."""
    types = set(map(type, items))
    if depth > 0 and types <= _PYTHON_NUMBERS:
        return True
    return depth > 0 and all(
        _is_numeric(content, depth - 1)
        if isinstance(content := item.content if isinstance(item, OutputObject) else item, list | tuple)
        else isinstance(item, bool | int | float | np.number | np.bool_)
        or (isinstance(item, np.ndarray) and item.dtype.kind in "fiub" and not isinstance(item, np.ma.MaskedArray))
        for item in items
    )


def _take_items(output: Any) -> Any:
    """Replace named tuples and other objects within a sequence by their items."""
    if isinstance(output, OutputObject):
        output = output.content
    if not isinstance(output, list | tuple) or set(map(type, output)).isdisjoint({list, tuple, OutputObject}):
        return output
    return [_take_items(item) for item in output]


def _to_array(output: Any) -> Float | None:
    try:
        array = np.asarray(output)
    except ValueError:
        return None
    if array.dtype.kind not in "fiub" or not array.size:
        return None
    if array.dtype.kind in "iu" and (array.max() >= _LARGE or array.min() <= -_LARGE):
        return None
    return array.astype(np.float64).ravel()


def _describe_form(output: Any, numbers: Float) -> str:
    """Describe the form of an output that is nothing but these numbers."""
    match output:
        case np.ndarray():
            return f"ndarray {output.shape} {_describe_type(output.dtype)}"
        case list() | tuple():
            return f"{type(output).__name__} {np.shape(_take_items(output))} {_list_types(output)}"
        case OutputObject():
            return f"{output.kind} {output.text} {_describe_form(output.content, numbers)}"
        case np.generic():
            return _describe_type(output.dtype)
        case bool() | int() | float():
            return _name_number(output)
    return f"{type(output).__name__} {numbers.shape}"


def _describe_type(dtype: np.dtype[Any]) -> str:
    """Describe a type of numbers in NumPy, the same for all byte orders; wider ones are kept as 64 bits."""
    return f"{dtype.kind}{min(dtype.itemsize, 8)}"


def _name_number(value: Any) -> str:
    """Name the type of a number of Python."""
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "number"


def _list_types(items: Sequence[Any]) -> str:
    """List the types of the items of a sequence of numbers; one name where they are all the same."""
    types = set(map(type, items))
    if len(types) == 1 and not types & {list, tuple, np.ndarray, OutputObject}:
        return types.pop().__name__
    return " ".join(
        f"{type(item).__name__}({_list_types(item)})"
        if isinstance(item, list | tuple)
        else f"{item.kind}({_list_types(item.content)})"
        if isinstance(item, OutputObject)
        else _describe_type(item.dtype)
        if isinstance(item, np.ndarray)
        else type(item).__name__
        for item in items
    )


def _join(outputs: Sequence[OutputParts]) -> OutputParts:
    """Join the parts of several outputs, as those of a list."""
    parts = OutputParts()
    parts.add_type("list", str(len(outputs)))
    for one in outputs:
        parts.add_parts(one)
    return parts


def _read(output: Any, records: int, parts: OutputParts, path: str) -> None:
    """Read plain values."""
    match output:
        case None:
            parts.add_type("None")
        case Failure():
            parts.add_type(f"raises {output.kind}")
            _read_text(output.message, parts, path)
            if output.attributes:
                _read(output.attributes, records, parts, path)
        case np.bool_() | np.number():
            parts.add_type("bool" if isinstance(output, np.bool_) else _describe_type(output.dtype))
            _read_number(output, parts, path)
        case bool() | int() | float():
            parts.add_type(_name_number(output))
            _read_number(output, parts, path)
        case str():
            parts.add_type("str")
            _read_text(output, parts, path)
        case np.ndarray():
            kind = "" if output.dtype == np.float64 else f" {_describe_type(output.dtype)}"
            parts.add_type("array", f"{output.shape}{kind}")
            _read_array(output, records, parts, path)
        case set():
            _read_set(output, parts)
        case dict():
            parts.add_type("dict", str(len(output)))
            for key, value in output.items():
                parts.name(key, _take_number(value))
                _read(value, records, parts, f"{path}/{key}")
                if value is None or isinstance(value, bool | str):
                    parts.counts[f"{key}={value}"[:_FIRST_LETTERS]] += 1
        case list() | tuple():
            _read_sequence(output, type(output).__name__, records, parts, path)
        case OutputObject():
            _read_object(output, records, parts, path)


def _read_number(value: Any, parts: OutputParts, path: str) -> None:
    parts.add_number(_to_float(value), path)
    if isinstance(value, int | np.integer) and abs(int(value)) >= _LARGE:
        parts.words.append(_write_whole(int(value)))


def _read_array(array: NDArray[Any], records: int, parts: OutputParts, path: str) -> None:
    numbers = array.astype(np.float64).ravel().tolist()
    parts.numbers.extend(numbers)
    if path:
        for place, value in enumerate(numbers[: max(0, _MOST_LABELS - len(parts.labels))]):
            parts.labels.setdefault(f"{path}/{place}", value)
    _name_positions(array.ravel().tolist(), records, parts)


def _read_set(keys: set[Any], parts: OutputParts) -> None:
    parts.add_type("set", str(len(keys)))
    for key in sorted(keys, key=_sort_key):
        parts.name(key)
        if isinstance(key, float):
            parts.numbers.append(float(key))


def _read_sequence(output: Sequence[Any], name: str, records: int, parts: OutputParts, path: str) -> None:
    parts.add_type(name, str(len(output)))
    if output and all(isinstance(item, str) for item in output):
        for item in output:
            parts.name(item)
            _read_text(item, parts, path, as_form=False)
        return
    _name_positions(output, records, parts)
    for place, item in enumerate(output):
        key = _take_key(item)
        if key is not None:
            parts.name(key, _take_number(item))
        is_open = len(parts.labels) < _MOST_LABELS
        inner = f"{path}/{place if key is None else key}" if (path or key is not None) and is_open else ""
        _read(item, records, parts, inner)


def _read_object(output: OutputObject, records: int, parts: OutputParts, path: str) -> None:
    match output.content:
        case np.ndarray() as array:
            parts.add_type(output.kind, f"{array.shape}")
            _read_array(array, records, parts, path)
        case list() | tuple() as items:
            _read_sequence(items, output.kind, records, parts, path)
        case content:
            parts.add_type(output.kind)
            if content is not None:
                _read(content, records, parts, path)
    if output.text:
        _read_text(output.text, parts, path)


def _read_text(text: str, parts: OutputParts, path: str, *, as_form: bool = True) -> None:
    """Read the numbers and the words in a text; the text without its numbers belongs to the form."""
    if as_form:
        parts.form.append(_NUMBER.sub("#", text))
    parts.texts = [*parts.texts[:1], text]
    words = _WORD.findall(text)
    parts.counts.update(words[:_MOST_WORDS])
    if len(words) > 1:
        parts.counts.update(f"{key}={value}" for key, value in _PAIR.findall(text)[:_MOST_WORDS])
    content = _parse_json(text)
    if content is not None:
        _read(simplify(content), 0, parts, f"{path}/text")
        return
    parts.numbers.extend(_to_float(number) for number in _NUMBER.findall(text))
    for word, number in _LABELLED.findall(text)[: max(0, _MOST_LABELS - len(parts.labels))]:
        parts.labels.setdefault(f"{path} {word}", _to_float(number))


def _parse_json(text: str) -> Any:
    """Parse a text that is a list or an object in JSON; None for others."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _name_positions(values: Sequence[Any], records: int, parts: OutputParts) -> None:
    """Note values as ids where they can be different positions of records."""
    if len(values) > records or not all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in values):
        return
    if len(set(values)) == len(values) and all(0 <= v < records for v in values):
        for value in values:
            parts.name(int(value))


def _take_key(item: Any) -> Any:
    """Return the id of an item of a list: its first part, or its field `id`."""
    if isinstance(item, OutputObject):
        item = item.content
    if isinstance(item, list | tuple) and len(item) > 1 and isinstance(item[0], str | int | np.integer):
        return item[0]
    if isinstance(item, Mapping):
        for name in ("id", "index", "key", "name", "record"):
            if name in item:
                return item[name]
    return None


def _take_number(value: Any) -> float | None:
    """Return a number that stands beside an id."""
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return _to_float(value)
    if isinstance(value, list | tuple):
        return next((_to_float(one) for one in value[1:] if isinstance(one, int | float | np.number)), None)
    if isinstance(value, Mapping):
        return next((_to_float(one) for name, one in value.items() if name != "id" and isinstance(one, float)), None)
    return None


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except (OverflowError, ValueError, TypeError):
        return float("nan")


def _write_whole(value: int) -> str:
    """Write a whole number of any size; Python limits how long decimals may be."""
    return hex(value)


def _sort_key(value: Any) -> tuple[str, Any]:
    return (type(value).__name__, value) if isinstance(value, int | float | str) else ("", str(value))


def make_token(text: str) -> float:
    """Convert a text to a number that stands for it."""
    return float(zlib.crc32(text.encode("utf-8", "replace")))


class OutputReader:
    """Reads outputs of one collection and its neighbour as rows of numbers.

    The columns are chosen from a few examples. Outputs that are nothing but numbers, always equally many, have one
    column per number and one for their form. Others have columns as `scoreshield.audit.encoding` describes. Where there
    are too many, those are kept that move most between the sides.

    Args:
        examples: Outputs of both sides.
        records: How many records the collections have.
        sides: For each example, whether the first collection made it. None where that is unknown: then columns that
            differ between examples are preferred.

    Attributes:
        is_number: For each column, whether it holds numbers and no tokens.
    """

    def __init__(self, examples: Sequence[Any], records: int, sides: Flags | None = None) -> None:
        self._records = records
        examples = [_simplify_drawn(output) for output in examples]
        self._width = _find_width(examples)
        if self._width is not None:
            self._form = _describe_form(examples[0], np.empty(self._width))
            self._example = examples[0]
            self.is_number = np.arange(self._width + 1) < self._width
            return
        parts = [take_apart(output, records) for output in examples]
        ids = [{key: place + part.values.get(key, 0.0) for key, place in part.places.items()} for part in parts]
        self._ids = _choose(ids, _IDS, sides)
        self._numbers = _choose_places([part.numbers for part in parts], _NUMBERS, sides)
        self._words = _choose_places([list(map(make_token, part.words)) for part in parts], _WORDS, sides)
        self._vocabulary = _choose(_keep_common(parts), _VOCABULARY, sides)
        is_fixed = len({tuple(part.structure) for part in parts}) == 1 and not any(part.texts for part in parts)
        self._labels = [] if is_fixed else _choose([part.labels for part in parts], _LABELS, sides)
        self._has_text = any(part.texts for part in parts)
        longest = max((len(text) for part in parts for text in part.texts), default=0)
        self._letters = min(_FIRST_LETTERS, longest), min(_LAST_LETTERS, longest)
        wide = 2 * len(self._ids) + len(self._numbers) + 1 + len(self._vocabulary) + len(self._labels)
        wide += (1 + sum(self._letters)) * self._has_text
        self.is_number = np.arange(wide + 2 + len(self._words) + self._has_text) < wide

    @property
    def is_plain(self) -> bool:
        """Whether outputs are nothing but numbers, always equally many."""
        return self._width is not None

    def read(self, outputs: Sequence[Any] | Float) -> Float:
        """Convert outputs to rows."""
        if isinstance(outputs, np.ndarray):
            if self._width == outputs.shape[1]:
                return np.column_stack([outputs, np.zeros(len(outputs))])
            outputs = list(outputs)
        if self._width is None:
            return np.array([self._encode(output) for output in outputs]).reshape(len(outputs), -1)
        rows = np.full((len(outputs), self._width + 1), np.nan)
        for row, drawn in zip(rows, outputs, strict=True):
            if _is_like(drawn, self._example):
                row[:-1], row[-1] = drawn if type(drawn) is not np.ndarray else drawn.ravel(), 0.0
                continue
            output = _simplify_drawn(drawn)
            numbers = to_numbers(output)
            if numbers is not None and len(numbers) == self._width:
                form = _describe_form(output, numbers)
                row[:-1], row[-1] = numbers, 0.0 if form == self._form else make_token(form)
            else:
                row[-1] = make_token(" ".join(take_apart(output, self._records).form))
        return rows

    def _encode(self, output: Any) -> list[float]:
        parts = take_apart(output, self._records)
        nothing = float("nan")
        places = [float(parts.places.get(key, -1)) for key in self._ids]
        values = [parts.values.get(key, nothing) for key in self._ids]
        numbers = _pick(parts.numbers, self._numbers)
        counts = [float(parts.counts[word]) for word in self._vocabulary]
        labels = [parts.labels.get(label, nothing) for label in self._labels]
        order, form = make_token("\n".join(parts.words)), make_token(" ".join(parts.form))
        words = [make_token(parts.words[place]) if place < len(parts.words) else nothing for place in self._words]
        row = [*places, *values, *numbers, float(len(parts.numbers)), *counts, *labels]
        if self._has_text:
            row += _read_letters(parts.texts, *self._letters)
            words.append(make_token(" ".join(parts.structure)))
        return [*row, form, order, *words]


def _simplify_drawn(output: Any) -> Any:
    """Convert an output to plain values, unless it is taken apart already."""
    if isinstance(output, OutputParts) or (isinstance(output, list) and OutputParts in map(type, output)):
        return output
    # The numbers of a ScoreShield release are kept however many there are.
    return output if type(output) is np.ndarray and output.dtype.kind in "fiub" else simplify(output)


def _is_like(output: Any, example: Any) -> bool:
    """Whether an output is quickly seen to have the form of an example: an array or a list of floats, or a float."""
    kind = type(output)
    if kind is not type(example):
        return False
    if kind is np.ndarray:
        return bool(output.dtype == np.float64 and example.dtype == np.float64 and output.shape == example.shape)
    if kind is list:
        return len(output) == len(example) and set(map(type, output)) == set(map(type, example)) == {float}
    return kind is float


def _find_width(examples: Sequence[Any]) -> int | None:
    """Find how many numbers all outputs have; None where they have more than numbers, or not equally many."""
    width = None
    for output in examples:
        numbers = to_numbers(output)
        if numbers is None or (width is not None and len(numbers) != width):
            return None
        width = len(numbers)
    return width


def _pick(values: list[float], places: list[int]) -> list[float]:
    return [values[place] if place < len(values) else float("nan") for place in places]


def _read_letters(texts: list[str], beginning: int, end: int) -> list[float]:
    """Read the length of the texts, and the letters at the beginning of the first and at the end of the last."""
    nothing = float("nan")
    if not texts:
        return [nothing] * (1 + beginning + end)
    first, last = list(map(ord, texts[0][:beginning])), list(map(ord, texts[-1][: -end - 1 : -1]))
    gaps = [nothing] * (beginning - len(first)), [nothing] * (end - len(last))
    return [float(sum(map(len, texts))), *first, *gaps[0], *last, *gaps[1]]


# ---- Which columns there are.


def _keep_common(parts: Sequence[OutputParts]) -> list[dict[str, float]]:
    """Keep the counts that differ between examples, and that more than one example has where there are many."""
    found = Counter(word for part in parts for word in part.counts)
    fewest = 2 if len(parts) >= _MANY_EXAMPLES else 1
    first = parts[0].counts if parts else Counter()
    kept = [
        word
        for word, times in found.most_common()
        if times >= fewest and (times < len(parts) or any(part.counts[word] != first[word] for part in parts))
    ]
    chosen = dict.fromkeys(kept[:_CANDIDATES])
    return [{word: float(part.counts[word]) for word in chosen} for part in parts]


def _choose(rows: Sequence[Mapping[str, float]], most: int, sides: Flags | None) -> list[str]:
    """Choose keys: all of them, in the order in which they come, or those that move most."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    if len(names) <= most:
        return names
    names = names[:_CANDIDATES]
    matrix = np.array([[row.get(name, np.nan) for name in names] for row in rows])
    return [names[place] for place in _choose_columns(matrix, most, sides)]


def _choose_places(rows: Sequence[list[float]], most: int, sides: Flags | None) -> list[int]:
    """Choose places of a sequence: all of them, or those that move most."""
    length = max(map(len, rows), default=0)
    if length <= most:
        return list(range(length))
    matrix = np.full((len(rows), length), np.nan)
    for target, row in zip(matrix, rows, strict=True):
        target[: len(row)] = row
    return _choose_columns(matrix, most, sides)


def _choose_columns(matrix: Float, most: int, sides: Flags | None) -> list[int]:
    """Choose the columns that move most between the sides, in order; without sides, first those that are not constant.

    Columns that move equally are taken from the beginning.
    """
    if sides is None or sides.all() or not sides.any():
        filled = np.nan_to_num(matrix, nan=-np.inf)
        moves = (filled != filled[:1]).any(axis=0).astype(np.float64)
    else:
        moves = measure_moves(matrix[sides], matrix[~sides])
    return sorted(np.argsort(-moves, kind="stable")[:most].tolist())
