"""Read the YAML of a policy file, where each setting has one meaning.

Plain YAML takes the last of two equal settings, reads ``020`` as 16 and ``1:30`` as 90, and repeats a part as often as
aliases name it. In a policy that would hide a mistake, so the first and the last are errors here, and such numbers are
texts, which no setting of a number takes.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml

#: The most values of a policy, with what aliases repeat.
_MOST_VALUES = 100_000
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)$")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?$")
_NUMBER_START = list("-+.0123456789")


class PolicyTextError(ValueError):
    """The text of a policy is no YAML, or has two meanings. The message says what is wrong."""


class _PolicyLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads numbers in decimal form only. Times stay texts, which the policy checks."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {
        start: [one for one in found if one[0].rpartition(":")[2] not in ("int", "float", "timestamp")]
        for start, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_PolicyLoader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, _NUMBER_START)
_PolicyLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _NUMBER_START)


def parse_policy_text(text: str) -> Any:
    """Parse the text of a policy file.

    Raises:
        PolicyTextError: It is not YAML, names a setting twice, or holds more values than a policy can need.
    """
    loader = _PolicyLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _count_values(root, {})
        return loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise PolicyTextError("it is not YAML" + ("" if mark is None else f" at line {mark.line + 1}")) from None
    except (yaml.YAMLError, RecursionError):
        raise PolicyTextError("it is not YAML") from None
    except PolicyTextError:
        raise
    except ValueError:  # of a value with a tag, such as !!timestamp
        raise PolicyTextError("it holds a value that does not exist") from None
    finally:
        loader.dispose()


def _count_values(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Count the values of a part, with what its aliases repeat, and find settings that are named twice."""
    if id(node) in known:
        counted = known[id(node)]
        if counted is None:
            raise PolicyTextError("a part of it contains itself")
        return counted
    known[id(node)] = None
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        _check_names(node)
        parts = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        parts = list(node.value)
    count = 1 + sum(_count_values(part, known) for part in parts)
    if count > _MOST_VALUES:
        raise PolicyTextError(f"it holds more than {_MOST_VALUES:,} values")
    known[id(node)] = count
    return count


def _check_names(node: yaml.MappingNode) -> None:
    names = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in names:
                name = "".join(letter if letter.isprintable() else "?" for letter in key.value[:40])
                raise PolicyTextError(f"it names {name} twice, at line {key.start_mark.line + 1}")
            names.add(key.value)
