"""The policy file: what it means, and one sentence for each contradiction."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

import yaml
from service_support import make_policy, open_service, write_collection, write_policy

from scoreshield.errors import InvalidInput, LedgerError
from scoreshield.service.answers import AnswerBook
from scoreshield.service.core import Service
from scoreshield.service.policy import check_policy, find_contradictions, read_policy
from scoreshield.service.summary import describe_index_charges, describe_policy, find_policy_faults

READER = {"role": "reader", "collections": {"docs": {"actions": ["search"]}}}

CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown collection": ({"callers": {"a": {**READER, "collections": {"x": {"actions": ["search"]}}}}}, "not serve"),
    "action not offered": (
        {"callers": {"a": {**READER, "collections": {"docs": {"actions": ["index"]}}}}},
        "does not offer it",
    ),
    "action not of the role": (
        {"callers": {"a": {"role": "officer", "collections": {"docs": {"actions": ["search"]}}}}},
        "the role officer does not have",
    ),
    "reader reads entries": (
        {"callers": {"a": {**READER, "collections": {"docs": {"actions": ["entries"]}}}}},
        "the role reader does not have",
    ),
    "nothing granted": ({"callers": {"a": {"role": "reader"}}}, "may do nothing"),
    "no action granted": ({"callers": {"a": {**READER, "collections": {"docs": {"actions": []}}}}}, "no action"),
    "expired": ({"callers": {"a": {**READER, "expires": "2020-01-01"}}}, "has expired already"),
    "allowance above the budget": (
        {"callers": {"a": {**READER, "collections": {"docs": {"actions": ["search"], "allowance": {"epsilon": 99}}}}}},
        "whose whole budget is 20",
    ),
    "allowance below one query": (
        {"callers": {"a": {**READER, "collections": {"docs": {"actions": ["search"], "allowance": {"epsilon": 0.5}}}}}},
        "and caller a is allowed 0.5 in all",
    ),
    "other database": ({"installation": {"database": "mysql://user:password@host/db"}}, "must be sqlite:///PATH or"),
    "no folder of the database": ({"installation": {"database": "sqlite:///none/s.db"}}, "of the database does not"),
    "no folder of the key": ({"installation": {"key_file": "none/key"}}, "of the key file does not exist"),
    "database is the data": (
        {"installation": {"database": "sqlite:///docs.npz"}},
        "The database of the service and the file of collection docs are the same file",
    ),
    "key is the data": (
        {"installation": {"key_file": "../{folder}/docs.npz"}},
        "The key file of the service and the file of collection docs are the same file",
    ),
    "database is the key": (
        {"installation": {"database": "sqlite:///same", "key_file": "same"}},
        "The key file of the service and the database of the service are the same file",
    ),
    "gaussian without delta": (
        {"collection": {"search": {"mechanism": "gaussian", "epsilon": 1}}},
        "needs a delta above 0",
    ),
    "query above the budget": ({"collection": {"search": {"epsilon": 21}}}, "costs epsilon 21"),
    "no epsilon": ({"collection": {"search": {"mechanism": "staircase"}}}, "no epsilon for a search"),
    "index without section": ({"collection": {"search": {"mechanism": "index"}}}, "has no section index"),
    "index with epsilon": (
        {"collection": {"search": {"mechanism": "index", "epsilon": 1}, "index": {"epsilon": 5}}},
        "costs nothing per query",
    ),
    "k above most": ({"collection": {"search": {"epsilon": 1, "k": 20, "most": 10}}}, "allows at most 10"),
    "keep below most": ({"collection": {"search": {"epsilon": 1, "most": 100, "keep": 50}}}, "keeps 50 records"),
    "missing file": ({"collection": {"file": "other.npz"}}, "does not exist"),
    "field twice": ({"collection": {"fields": ["year", "year"]}}, "twice"),
    "field named score": ({"collection": {"fields": ["score"]}}, "for something else"),
    "open without TLS": ({"installation": {"address": "0.0.0.0"}}, "without TLS"),
    "missing certificate": ({"installation": {"tls": {"certificate": "c.pem", "key": "docs.npz"}}}, "does not exist"),
}


@pytest.mark.parametrize(("changes", "sentence"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_contradiction_is_one_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    """Each contradiction gives one sentence, and no service starts with it."""
    changes = json.loads(json.dumps(changes).replace("{folder}", tmp_path.name))
    policy = make_policy(tmp_path, write_policy(**changes))
    faults = [fault for fault in find_contradictions(policy) if sentence in fault]
    assert len(faults) == 1, list(find_contradictions(policy))
    assert faults[0].endswith(".")
    with pytest.raises(InvalidInput, match=sentence):
        open_service(tmp_path, write_policy(**changes))


def test_consistent_policy_has_no_fault(tmp_path: Path) -> None:
    policy = make_policy(tmp_path)
    assert list(find_contradictions(policy)) == []
    assert find_policy_faults(policy) == []


def test_shared_file_and_shared_ledger(tmp_path: Path) -> None:
    """Two collections of one file, and two names that one schema would hold, are contradictions."""
    content = write_policy()
    content["collections"] = {name: content["collections"]["docs"] for name in ("a-b", "a_b")}
    content["callers"] = {}
    faults = list(find_contradictions(make_policy(tmp_path, content)))
    assert [word in " ".join(faults) for word in ("read the same file", "share one ledger")] == [True, True]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"collection": {"expected_queries": 21}}, "expects 21 queries, and its budget covers 20"),
        ({"collection": {"search": {"mechanism": "gaussian", "epsilon": 1, "delta": 1e-6}}}, "a delta above 0"),
        ({"collection": {"search": {"mechanism": "gaussian", "epsilon": 1}}}, "delta"),
        ({"collection": {"search": {"mechanism": "laplace", "epsilon": 1, "delta": 1e-6}}}, "delta"),
        ({"collection": {"fields": ["nothing"]}}, "nothing"),
        ({"collection": {"embedder": "no_such_module:encode"}}, "cannot be imported"),
        ({"collection": {"embedder": "json:dumps"}}, "must make rows of 16 numbers"),
        ({"collection": {"matches": {"threshold": 2.0, "epsilon": 1}}}, "threshold"),
        ({"collection": {"top_k": {"k": 1000, "epsilon": 1}}}, "at most the number of records"),
    ],
)
def test_fault_that_needs_the_file(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    """Costs are checked with the files, before anything is made."""
    policy = make_policy(tmp_path, write_policy(**changes))
    assert any(sentence in fault for fault in find_policy_faults(policy))
    assert not list(tmp_path.glob("*.db"))
    with pytest.raises(InvalidInput):
        open_service(tmp_path, write_policy(**changes))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("collections", "docs", "budget"), {"epsilon": -1}),
        (("collections", "docs", "budget"), None),
        (("collections", "docs", "unknown"), 1),
        (("collections", "docs", "search"), {"mechanism": "magic", "epsilon": 1}),
        (("callers", "app", "role"), "owner"),
        (("callers", "app", "collections"), {"docs": {"actions": ["everything"]}}),
        (("collections",), {"Upper Case": {}}),
        (("installation", "port"), 70_000),
    ],
)
def test_wrong_setting_is_named(path: tuple[str, ...], value: Any) -> None:
    """A wrong setting raises one sentence with its place."""
    content = write_policy()
    place = content
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(InvalidInput, match=r"The setting .* of the policy is wrong"):
        check_policy(content)


def test_nothing_is_allowed_by_default(tmp_path: Path) -> None:
    """A caller without a grant sees nothing, and a grant without an action allows nothing."""
    policy = make_policy(tmp_path)
    assert policy.find_grant("app", "docs") is not None
    assert policy.find_grant("app", "other") is None
    assert policy.find_grant("stranger", "docs") is None


def test_read_policy_places_files_and_zones(tmp_path: Path) -> None:
    """Relative paths start at the folder of the policy, and a time without a zone is UTC."""
    write_collection(tmp_path / "docs.npz")
    content = write_policy(callers={"a": {**READER, "expires": "2999-01-01T00:00:00"}})
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(content))
    policy = read_policy(file)
    assert policy.collections["docs"].file == tmp_path / "docs.npz"
    assert policy.installation.database == f"sqlite:///{tmp_path / 'service.db'}"
    assert policy.callers["a"].expires == datetime(2999, 1, 1, tzinfo=UTC)
    content["callers"]["a"]["expires"] = date(2999, 1, 1)  # as YAML reads a day without quotes
    file.write_text(yaml.safe_dump(content))
    assert read_policy(file).callers["a"].expires == datetime(2999, 1, 1, 23, 59, 59, 999_999, tzinfo=UTC)
    assert "database" not in policy.describe_public()["installation"]
    for text in ("[", "a: &a [*a]", "- 1"):
        file.write_text(text)
        with pytest.raises(InvalidInput):
            read_policy(file)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("epsilon: 20.0", "epsilon: 20.0, epsilon: 2000.0", "it names epsilon twice, at line 3"),
        ("epsilon: 20.0", "epsilon: 20.0, 'epsilon': 2000.0", "it names epsilon twice"),
        ("  docs:", "  My_Docs:", "collections.My_Docs of the policy is wrong: a name has small letters"),
        ("epsilon: 20.0", "epsilon: true", "budget.epsilon of the policy is wrong"),
        ("epsilon: 20.0", "epsilon: 020", "budget.epsilon of the policy is wrong"),
        ("epsilon: 20.0", "epsilon: 1:30", "budget.epsilon of the policy is wrong"),
        ("epsilon: 20.0", "epsilon: '20'", "budget.epsilon of the policy is wrong"),
        ("epsilon: 20.0", "epsilon: .inf", "budget.epsilon of the policy is wrong"),
        ("epsilon: 20.0", "epsilom: 20.0", "budget.epsilom of the policy is wrong: there is no such setting."),
        ("epsilon: 20.0, ", "", "budget.epsilon of the policy is wrong: it must be given."),
        ("k: 3", "k: yes", "k of the policy is wrong"),
        ("k: 3", "k: 0x3", "k of the policy is wrong"),
        ("expires: 2999-06-30", "expires: 2999-06-31", "expires of the policy is wrong"),
        ("expires: 2999-06-30", "expires: 29990630", "expires of the policy is wrong: it must be a day, such as"),
        ("expires: 2999-06-30", "expires: !!timestamp 2999-06-31", "a value that does not exist"),
        ("expires: 2999-06-30", "expires: [*unknown]", "it is not YAML at line"),
    ],
)
def test_setting_has_one_meaning(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    """What YAML would read in a surprising way is one sentence."""
    text = (
        "collections:\n  docs:\n    budget: {epsilon: 20.0, delta: 1e-6}\n    file: docs.npz\n"
        "    top_k: {epsilon: 1, k: 3}\ncallers:\n  a: {role: admin, expires: 2999-06-30}\n"
    )
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    policy = read_policy(file)
    assert policy.collections["docs"].budget.delta == 1e-6
    assert policy.callers["a"].expires == datetime(2999, 6, 30, 23, 59, 59, 999_999, tzinfo=UTC)
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(InvalidInput, match=re.escape(sentence)):
        read_policy(file)


def test_body_holds_the_queries(tmp_path: Path) -> None:
    """A stated batch must fit into a request; a service starts all the same, since smaller batches fit."""
    content = write_policy()
    content["installation"] |= {"largest_body": 12_800, "most_queries": 100}
    assert find_policy_faults(make_policy(tmp_path, content)) == []
    content["installation"]["most_queries"] = 101
    (fault,) = find_policy_faults(make_policy(tmp_path, content))
    assert "cannot hold 101 queries of 16 numbers" in fault


def test_aliases_are_limited(tmp_path: Path) -> None:
    """A few lines whose aliases stand for a million values are rejected before they are checked."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 30)]
    file = tmp_path / "policy.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(InvalidInput, match="more than 100,000 values"):
        read_policy(file)
    file.write_text("a: &a [*a]")
    with pytest.raises(InvalidInput, match="contains itself"):
        read_policy(file)


def test_dry_run_states_costs(tmp_path: Path) -> None:
    """The description says who may do what, what a query costs and how many fit."""
    text = "\n".join(describe_policy(make_policy(tmp_path)))
    assert "One search answer: Strong. An attacker" in text
    assert "The whole budget: Hides practically nothing. An attacker" in text
    assert "search: staircase, epsilon 1 per query; 20 queries fit" in text
    assert "Caller officer (officer" in text
    assert "docs: search, matches, top_k" in text
    assert not list(tmp_path.glob("*.db"))


def test_queries_fit_beside_the_index(tmp_path: Path) -> None:
    """An index is charged at the start, so that fewer queries fit. One that does not fit is the only fault."""
    content = write_policy(collection={"index": {"epsilon": 4.0}})
    assert "epsilon 1 per query; 16 queries fit" in "\n".join(describe_policy(make_policy(tmp_path, content)))
    content["collections"]["docs"]["expected_queries"] = 17
    (fault,) = find_policy_faults(make_policy(tmp_path, content))
    assert "expects 17 queries, and its budget covers 16" in fault
    del content["collections"]["docs"]["expected_queries"]
    content["collections"]["docs"]["index"]["epsilon"] = 21.0
    faults = find_policy_faults(make_policy(tmp_path, content))
    assert all("one index" in fault.lower() for fault in faults)
    assert faults


def test_check_finds_another_budget(tmp_path: Path) -> None:
    """The budget of a ledger cannot be changed. The check says so before a start does, and makes nothing."""
    policy = make_policy(tmp_path)
    assert find_policy_faults(policy) == []
    assert not list(tmp_path.glob("*.db"))
    Service(policy)
    assert find_policy_faults(policy) == []
    content = write_policy()
    content["collections"]["docs"]["budget"]["epsilon"] = 21.0
    changed = make_policy(tmp_path, content)
    (fault,) = find_policy_faults(changed)
    with pytest.raises(InvalidInput) as caught:
        Service(changed)
    assert fault == str(caught.value)
    assert "was set to epsilon 20.0" in fault
    next(tmp_path.glob("*docs.ledger.db")).write_bytes(b"damaged")
    assert find_policy_faults(changed) == []  # a policy may be checked where the ledger cannot be read


def test_check_states_the_charge_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start charges an index once for each state of the vectors. To say so makes and charges nothing."""
    content = write_policy(collection={"index": {"epsilon": 4.0}})
    policy = make_policy(tmp_path, content)
    charges = "The next start charges epsilon 4 for the index of docs."
    assert list(describe_index_charges(policy)) == [charges]
    assert not list(tmp_path.glob("*.db"))
    assert not list(tmp_path.glob("*.key"))

    def stop(*_: Any) -> Any:
        raise LedgerError("The disk is full.")

    with monkeypatch.context() as changed:
        changed.setattr(AnswerBook, "_draw", stop)
        with pytest.raises(LedgerError):
            Service(policy)
    pending = "The next start charges nothing for the index of docs: it is charged, and will be computed."
    assert list(describe_index_charges(policy)) == [pending]
    service = Service(policy)
    spent = service.collections["docs"].account.spent
    assert spent == 4.0
    stored = "The next start charges nothing for the index of docs: it is stored for these vectors."
    assert list(describe_index_charges(policy)) == [stored]
    write_collection(tmp_path / "docs.npz", seed=1)
    assert list(describe_index_charges(policy)) == [charges]
    assert service.collections["docs"].account.spent == spent
    (tmp_path / "scoreshield-installation.key").rename(tmp_path / "away.key")
    assert list(describe_index_charges(policy)) == [
        "The next start charges epsilon 4 for the index of docs, unless it is stored: the ledger or the installation "
        "key cannot be read."
    ]
    assert list(describe_index_charges(make_policy(tmp_path))) == []
