"""The files around the code: workflows, lock file, changelog, forms, container, and the list of skips."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from skip_list import UNKNOWN, SkipRule, group_skips, is_ci, load_rules

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
MAKE_TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)

EXAMPLE = ROOT / "examples" / "audit-workflow.yml"  # users copy it
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def check_install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_install", ROOT / "tools" / "check_install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        ".dockerignore",
        ".gitattributes",
        ".github/ISSUE_TEMPLATE/config.yml",
        ".github/dependabot.yml",
        ".github/pull_request_template.md",
        ".pre-commit-config.yaml",
        "CHANGELOG.md",
        "CITATION.cff",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "Dockerfile",
        "LICENSE",
        "SECURITY.md",
        "compose.yaml",
        "docs/versions.md",
        "uv.lock",
    ],
)
def test_file_is_there(name: str) -> None:
    """A maintainer finds the files that projects usually have."""
    assert (ROOT / name).stat().st_size > 0


def test_contributing() -> None:
    """CONTRIBUTING names only commands that exist, and shows how to add the three usual things."""
    text = read("CONTRIBUTING.md")
    assert {word for word in re.findall(r"`make ([\w-]+)", text) if word not in MAKE_TARGETS} == set()
    for heading in ("Set-up", "Layers", "Add a mechanism", "Add a store", "Add a framework"):
        assert f"\n## {heading}\n" in text
    paths = re.findall(r"`((?:src|tests|docs|tools|integrations|stores)/[\w/.-]+\.(?:py|md|toml))`", text)
    assert len(paths) > 5
    names = [name for name in paths if "NAME" not in name]
    assert [
        name for name in names if not (ROOT / name).exists() and not (ROOT / "src/scoreshield" / name).exists()
    ] == []


def test_changelog_form() -> None:
    """The changelog begins with Unreleased, and its sections are those of Keep a Changelog."""
    headings = re.findall(r"^(##+) (.*)$", read("CHANGELOG.md"), flags=re.MULTILINE)
    versions = [text for level, text in headings if level == "##"]
    assert versions[0] == "[Unreleased]"
    assert [text for text in versions[1:] if not re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", text)] == []
    sections = [text for level, text in headings if level == "###"]
    assert set(sections) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert {"Added", "Changed", "Fixed", "Security"} <= set(sections)
    if len(versions) == 1:
        assert len(sections) == len(set(sections)), "one section of each kind"
        assert "Breaking" not in read("CHANGELOG.md"), "a first version breaks nothing"


def test_versions_agree(check_install: ModuleType) -> None:
    """The classifiers, the check of Pythons and the workflow name the same Pythons; CITATION.cff the same version."""
    pythons = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", text)]
    assert tuple(pythons) == check_install.PYTHONS
    jobs = yaml.safe_load(read(".github/workflows/tests.yml"))["jobs"]
    assert jobs["installed"]["strategy"]["matrix"]["python"] == pythons
    assert jobs["everything"]["strategy"]["matrix"]["python"] == pythons
    assert jobs["installed"]["strategy"]["matrix"]["versions"] == ["locked", "lowest"]
    systems = jobs["installed"]["strategy"]["matrix"]["system"]
    assert [name.partition("-")[0] for name in systems] == ["ubuntu", "macos", "windows"]
    assert yaml.safe_load(read("CITATION.cff"))["version"] == PROJECT["version"]


# Workflows.


def list_steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", [*WORKFLOWS, EXAMPLE], ids=lambda path: path.stem)
def test_actions_are_pinned(path: Path) -> None:
    """Every action is named by its commit, with the version beside it; one action has one commit everywhere."""
    uses = re.findall(r"uses: (\S+)(.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert uses
    for action, comment in uses:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action}{comment}"
    everywhere = {
        use for other in (*WORKFLOWS, EXAMPLE) for use in re.findall(r"uses: (\S+)@(\w+)", other.read_text("utf-8"))
    }
    assert len(everywhere) == len(dict(everywhere))


@each_workflow
def test_workflow_rights(path: Path) -> None:
    """A workflow has no rights; each job names its own. A checkout leaves no password, and no text enters a shell."""
    flow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert flow["permissions"] == {}
    for job in flow["jobs"].values():
        assert job["timeout-minutes"] <= 120
        assert job["permissions"]["contents"] == "read"
        assert set(job["permissions"]) <= {"contents", "id-token", "attestations"}
        assert path.stem == "release" or job["permissions"] == {"contents": "read"}
    for step in list_steps(path):
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", "")


@each_workflow
def test_workflow_commands_exist(path: Path) -> None:
    """The workflows call targets and scripts that exist."""
    commands = " ".join(step.get("run", "") for step in list_steps(path))
    assert [name for name in re.findall(r"make ([\w-]+)", commands) if name not in MAKE_TARGETS] == []
    assert [name for name in re.findall(r"python (\S+\.py)", commands) if not (ROOT / name).is_file()] == []
    extras = set(re.findall(r"--extra ([\w-]+)", commands))
    assert extras <= PROJECT["optional-dependencies"].keys()


def test_release_workflow() -> None:
    """A version is compared with its tag, attested with its SBOM, and published without a stored password."""
    text = read(".github/workflows/release.yml")
    flow = yaml.safe_load(text)
    assert "secrets." not in text
    assert flow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    assert 'wheel --tag "$GITHUB_REF_NAME"' in text
    assert flow["jobs"]["publish"]["needs"] == ["build", "attest"]
    assert flow["jobs"]["publish"]["environment"] == "pypi"
    assert "sbom-path" in text
    assert "pypi-attestations sign" in text
    assert "uv publish --trusted-publishing always" in text
    assert "enable-cache: true" not in text


def test_all_packages_are_published() -> None:
    """The release workflow builds scoreshield and every package of packages/; each change tests them."""
    flow = yaml.safe_load(read(".github/workflows/release.yml"))
    build = [step.get("run", "") for step in flow["jobs"]["build"]["steps"]]
    first, second = (next(n for n, run in enumerate(build) if name in run) for name in ("check_install", "build_pack"))
    assert first < second, "the check of the wheel empties dist/"
    assert build[second].endswith(" --built"), "the wheel that was compared with the tag is not built again"
    assert any("twine check --strict dist/*.whl dist/*.tar.gz" in run for run in build)
    commands = [step.get("run") for step in list_steps(ROOT / ".github" / "workflows" / "tests.yml")]
    assert {"make packages", "make extras"} <= set(commands)


def test_example_workflow() -> None:
    """The workflow that users copy installs what its audits need, and `make workflows` reads it."""
    for job in yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["jobs"].values():
        (line,) = [step["run"] for step in job["steps"] if "pip install" in step.get("run", "")]
        (extras,) = re.findall(r"'scoreshield\[([\w,-]+)\]'", line)
        assert {"audit", "report"} <= set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert " examples/audit-workflow.yml\n" in read("Makefile").partition("\nworkflows:")[2]


def test_zizmor() -> None:
    """zizmor, which knows the usual faults of workflows, finds none."""
    program = shutil.which("zizmor", path=str(Path(sys.executable).parent)) or shutil.which("zizmor")
    if program is None:
        pytest.skip("zizmor is not installed")
    done = subprocess.run(
        [program, "--offline", "--persona", "pedantic", "--format", "json", str(ROOT / ".github"), str(EXAMPLE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout) == [], done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_form(path: Path) -> None:
    """A form has what the platform demands: a name, a description, and fields with ids and labels."""
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea", "checkboxes", "dropdown"}
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)


def test_issue_forms() -> None:
    """There are four forms; reports of security faults are led away from public issues."""
    assert [path.stem for path in FORMS] == ["bug", "certificate", "docs", "mechanism"]
    links = yaml.safe_load(read(".github/ISSUE_TEMPLATE/config.yml")).get("contact_links", [])
    assert [link for link in links if not link["url"].endswith("/security/advisories/new")] == []
    for form in ("bug", "certificate"):
        assert "SECURITY.md" in read(f".github/ISSUE_TEMPLATE/{form}.yml")


# Versions of packages.


@pytest.fixture(scope="module")
def lock() -> dict[str, Any]:
    return tomllib.loads(read("uv.lock"))


def test_lock_hosts() -> None:
    """The lock file can be used anywhere: it names the public index, and no path or mirror."""
    assert set(re.findall(r"\w+://[^/\"]*", read("uv.lock"))) == {"https://pypi.org", "https://files.pythonhosted.org"}
    assert "/simple/" not in read("uv.lock").replace("https://pypi.org/simple", "")


def test_lock_is_current(lock: dict[str, Any]) -> None:
    """The lock file was made from the requirements that pyproject.toml states. If not: make lock."""
    own = next(package for package in lock["package"] if package["name"] == "scoreshield")
    assert own["version"] == PROJECT["version"]
    assert lock["requires-python"] == PROJECT["requires-python"]
    assert own["metadata"]["provides-extras"] == list(PROJECT["optional-dependencies"])

    def normalise(name: str, specifier: str) -> tuple[str, tuple[str, ...]]:
        return re.sub(r"[-_.]+", "-", name).lower(), tuple(sorted(part.strip() for part in specifier.split(",")))

    stated = set()
    for requirement in chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        found = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?\s*([^;]*)(?:;.*)?", requirement)
        assert found is not None, requirement
        if found[1] != "scoreshield":
            stated.add(normalise(found[1], found[2].strip()))
    locked = {normalise(entry["name"], entry.get("specifier", "")) for entry in own["metadata"]["requires-dist"]}
    assert {entry for entry in locked if entry[0] != "scoreshield"} == stated


def test_hooks_use_locked_versions(lock: dict[str, Any]) -> None:
    """The hooks before a commit run the ruff that the lock file has."""
    ruff = next(package["version"] for package in lock["package"] if package["name"] == "ruff")
    pinned = re.findall(r"ruff==([\d.]+)", read(".pre-commit-config.yaml"))
    assert pinned == [ruff] * len(pinned)
    assert pinned
    hooks = [hook for repo in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"] for hook in repo["hooks"]]
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "mypy"]


def test_one_uv() -> None:
    """The workflows and the image install one version of uv."""
    versions = {found for path in WORKFLOWS for found in re.findall(r'version: "(0\.[\d.]+)"', path.read_text("utf-8"))}
    assert versions == set(re.findall(r"uv==([\d.]+)", read("Dockerfile")))


# What users install.


def test_checked_tests_exist(check_install: ModuleType) -> None:
    """The tests of the installed wheel are there, and each extra with tests exists."""
    named = chain(check_install.CORE_TESTS, *check_install.EXTRA_TESTS.values())
    assert [name for name in named if not (ROOT / name).is_file()] == []
    assert check_install.EXTRA_TOOLS.keys() <= check_install.EXTRA_TESTS.keys()


def test_every_extra_is_tested_or_excused(check_install: ModuleType) -> None:
    """Each extra has tests at its lowest versions, or stands on a list with a reason."""
    tested, excused = check_install.EXTRA_TESTS.keys(), check_install.UNTESTED_EXTRAS
    assert sorted([*tested, *excused]) == sorted(PROJECT["optional-dependencies"])
    assert all(len(reason) > 10 for reason in excused.values())


def test_all_brings_all() -> None:
    """`[all]` brings every extra for users, except those that docs/dependencies.md names with a reason."""

    def expand(extra: str) -> set[str]:
        found = {extra}
        for requirement in PROJECT["optional-dependencies"][extra]:
            named = re.fullmatch(r"scoreshield\[([\w,-]+)\]", requirement)
            found.update(*(expand(name) for name in named[1].split(",")) if named else ())
        return found

    developers = {"dev", "docs", "mutation", "packaging", "peers"}
    left_out = {"face-embedders", "image-embedders", "ray", "spark"}
    assert expand("all") == PROJECT["optional-dependencies"].keys() - developers - left_out
    assert all(f"`[{name}]`" in read("docs/dependencies.md") for name in ("all", "stores", *left_out))


def test_wheel_comparison(check_install: ModuleType, tmp_path: Path) -> None:
    """A file that is missing, changed or added in a wheel is found."""
    wheel = tmp_path / "scoreshield-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("scoreshield/same.py", "1")
        archive.writestr("scoreshield/changed.py", "2")
        archive.writestr("scoreshield/added.py", "3")
        archive.writestr("scoreshield-1.dist-info/METADATA", "")
    committed = check_install.hash_files(
        [("src/scoreshield/same.py", b"1"), ("src/scoreshield/changed.py", b"0"), ("src/scoreshield/missing.py", b"4")]
    )
    found = check_install.list_differences(check_install.read_wheel(wheel), committed)
    assert found == [f"src/scoreshield/{name}.py" for name in ("added", "changed", "missing")]


def test_tag_must_be_the_version(check_install: ModuleType) -> None:
    """A tag that is not the version of pyproject.toml is rejected in one sentence."""
    with pytest.raises(SystemExit, match=r"^The tag is v9\.9\.9, but pyproject\.toml says \d+\.\d+\.\d+\.$"):
        check_install.check_tag("v9.9.9")


def test_unknown_extra() -> None:
    """An extra without tests is rejected with the list of those that have some."""
    command = [sys.executable, str(ROOT / "tools" / "check_install.py"), "lowest", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there are no tests for the extra 'nothing'; there are for: accounting, " in done.stderr


# The container.


def list_image_faults(dockerfile: str) -> list[str]:
    """List what is wrong with a Dockerfile: an unpinned base, root, packages without a version, secrets."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE))
    lines = [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]
    faults = []
    exact = re.compile(r"[\w./-]+:\d+\.\d+\.\d+-[\w.-]+@sha256:[0-9a-f]{64}( AS \w+)?")
    if any(name == "FROM" and not exact.fullmatch(rest) for name, rest in lines):
        faults.append("a base image without an exact version and digest")
    last = max(number for number, (name, _) in enumerate(lines) if name == "FROM")
    users = [rest for name, rest in lines[last:] if name == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        faults.append("no user, or root")
    entries = [rest for name, rest in lines[last:] if name == "ENTRYPOINT"]
    if entries != ['["scoreshield"]']:
        faults.append("another entry point")
    if any(name == "ADD" for name, _ in lines):
        faults.append("ADD, which may download")
    if any(name in ("ENV", "ARG") and re.search(r"(?i)password|secret|token", rest) for name, rest in lines):
        faults.append("a secret in a layer")
    for name, rest in lines:
        if name == "RUN" and "sudo" in rest.split():
            faults.append("sudo")
        if name == "RUN" and "pip install" in rest:
            words = rest.split("pip install", 1)[1].split()
            if "--no-cache-dir" not in words or any("==" not in word for word in words if not word.startswith("-")):
                faults.append("a package without an exact version")
        if name == "RUN" and "uv sync" in rest and "--frozen" not in rest:
            faults.append("uv sync without --frozen")
        if name == "WORKDIR" and not rest.startswith("/"):
            faults.append("a relative WORKDIR")
    return faults


def list_service_faults(compose: str) -> list[str]:
    """List the rights that a service of a compose file has and does not need."""
    faults = []
    content = yaml.safe_load(compose)
    inner = {name for name, network in content.get("networks", {}).items() if (network or {}).get("internal")}
    for service in content["services"].values():
        networks = set(service.get("networks", []))
        ports = service.get("ports", [])
        is_inner = "network_mode" not in service and networks != set() and networks <= inner
        is_closed = service.get("network_mode") == "none" or is_inner
        is_local = bool(networks & inner) and bool(ports) and all(port.startswith("127.0.0.1:") for port in ports)
        secrets = {k: v for k, v in service.get("environment", {}).items() if re.search("PASSWORD|SECRET|TOKEN", k)}
        user = re.sub(r"\$\{\w+:-(.*)\}", r"\1", str(service.get("user", "")))
        checks = {
            "root": re.fullmatch(r"[1-9]\d*:[1-9]\d*", user) is not None,
            "a writable root": service.get("read_only") is True,
            "capabilities": service.get("cap_drop") == ["ALL"] and not service.get("cap_add"),
            "new privileges": "no-new-privileges:true" in service.get("security_opt", []),
            "privileged": not service.get("privileged"),
            "a network": (is_closed and not ports) or ("network_mode" not in service and is_local),
            "a password in the file": all(k.endswith("_FILE") or ":?" in v for k, v in secrets.items()),
            "no health check": "restart" not in service or "healthcheck" in service,
            "no limit of processes": 0 < service.get("pids_limit", 0) <= 4096,
            "no limit of memory": "mem_limit" in service,
            "the image latest": not service.get("image", ":latest").endswith(":latest"),
            "the engine's socket": not any("docker.sock" in volume for volume in service.get("volumes", [])),
        }
        faults += [fault for fault, holds in checks.items() if not holds]
    return faults


def test_image() -> None:
    """The image is pinned, runs as a user without rights, and starts the command line."""
    assert list_image_faults(read("Dockerfile")) == []
    extras = set(re.findall(r"--extra ([\w-]+)", read("Dockerfile")))
    assert extras <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda text: re.sub(r"@sha256:\w+", "", text), "a base image without an exact version and digest"),
        (lambda text: re.sub(r"python:\S+", "python:latest", text), "a base image without an exact version and digest"),
        (lambda text: text.replace("USER 10001:10001\n", ""), "no user, or root"),
        (lambda text: text.replace("USER 10001:10001", "USER root"), "no user, or root"),
        (lambda text: text + "USER 0:0\n", "no user, or root"),
        (lambda text: text.replace("uv==0", "uv>=0"), "a package without an exact version"),
        (lambda text: text.replace("--no-cache-dir ", ""), "a package without an exact version"),
        (lambda text: text.replace("uv sync --frozen", "uv sync"), "uv sync without --frozen"),
        (lambda text: text.replace("COPY src", "ADD src"), "ADD, which may download"),
        (lambda text: text.replace("ENV PATH", "ENV API_TOKEN=x PATH"), "a secret in a layer"),
        (lambda text: text.replace('["scoreshield"]', '["sh"]'), "another entry point"),
        (lambda text: text.replace("WORKDIR /data", "WORKDIR data"), "a relative WORKDIR"),
        (lambda text: text.replace("RUN uv", "RUN sudo uv"), "sudo"),
    ],
)
def test_image_fault_is_found(change: Callable[[str], str], fault: str) -> None:
    """The check finds each fault that it is for."""
    assert list_image_faults(change(read("Dockerfile"))) == [fault]


def test_compose() -> None:
    """No container has rights that it does not need, a port for other computers, or a password in the file."""
    assert list_service_faults(read("compose.yaml")) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda text: text.replace("10001:10001", "0:0"), "root"),
        (lambda text: text.replace("read_only: true", "read_only: false"), "a writable root"),
        (lambda text: text.replace("cap_drop: [ALL]", "cap_drop: [NET_RAW]"), "capabilities"),
        (lambda text: text.replace("no-new-privileges:true", "no-new-privileges:false"), "new privileges"),
        (lambda text: text.replace("read_only: true", "read_only: true\n    privileged: true"), "privileged"),
        (lambda text: text.replace("network_mode: none", "network_mode: host"), "a network"),
        (lambda text: text.replace("    network_mode: none\n", "    networks: [front]\n"), "a network"),
        (lambda text: text.replace("    network_mode: none\n", ""), "a network"),
        (lambda text: text.replace("127.0.0.1:8741:", "8741:"), "a network"),
        (lambda text: text.replace("{internal: true}", "{}"), "a network"),
        (lambda text: text.replace("_PASSWORD_FILE: ", "_PASSWORD: "), "a password in the file"),
        (lambda text: text.replace("healthcheck:", "x-health:"), "no health check"),
        (lambda text: text.replace("    pids_limit: 256\n", ""), "no limit of processes"),
        (lambda text: text.replace("    mem_limit: 8g\n", ""), "no limit of memory"),
        (lambda text: text.replace("scoreshield:local", "scoreshield:latest"), "the image latest"),
        (lambda text: text.replace("./data:/data", "/var/run/docker.sock:/s"), "the engine's socket"),
    ],
)
def test_compose_fault_is_found(change: Callable[[str], str], fault: str) -> None:
    """The check finds each right that it is for, in one container or in several."""
    assert set(list_service_faults(change(read("compose.yaml")))) == {fault}


def test_image_gets_few_files() -> None:
    """The engine reads only what the Dockerfile copies, so private files beside the checkout stay there."""
    lines = [line for line in read(".dockerignore").splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", read("Dockerfile"), flags=re.MULTILINE)
    assert {name for line in copied for name in line.split()} == allowed


def test_folders_of_containers_are_ignored() -> None:
    """The folders that hold private collections and the password of the database are not added to a commit."""
    mounted = {f"/{name}/" for name in re.findall(r'volumes: \["\./(\w+):/data"\]', read("compose.yaml"))}
    assert mounted == {"/data/", "/service/"}
    assert mounted <= set(read(".gitignore").splitlines())


def test_image_builds() -> None:
    """The image is built and prints its version, where a container engine is at hand."""
    engines = (name for name in ("docker", "podman") if shutil.which(name))
    engine = next(
        (name for name in engines if not subprocess.run([name, "info"], capture_output=True).returncode), None
    )
    if engine is None:
        pytest.skip("no container engine is at hand")
    done = subprocess.run(["make", "image", f"ENGINE={engine}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"scoreshield {PROJECT['version']}" in done.stdout


# The list of skips.

RULES = [SkipRule("^no GPU", "buy one", "CI has none"), SkipRule("^no server$", "start one")]


def test_groups_of_skips() -> None:
    """Skips are grouped by reason, the most frequent first, each with its command."""
    reasons = [
        "no server",
        "no GPU here",
        "no GPU here",
        "could not import 'a.b': No module",
        "odd",
        "could not import 'z'",
    ]
    groups = {group.reason: group for group in group_skips(reasons, RULES, {"a": "package-a"})}
    assert next(iter(groups)) == "no GPU here"
    assert groups["no GPU here"].count == 2
    assert groups["no GPU here"].allowed == "CI has none"
    assert (groups["no server"].enable, groups["no server"].allowed) == ("start one", None)
    assert groups["could not import 'a.b': No module"].enable == "pip install 'package-a'"
    assert groups["odd"].enable == groups["could not import 'z'"].enable == UNKNOWN
    assert groups["odd"].allowed is None


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("true", True), ("", False), ("0", False), ("false", False)]
)
def test_is_ci(value: str, expected: bool) -> None:
    assert is_ci({"CI": value}) is expected
    assert not is_ci({})


SAMPLE = """
import pytest
from skip_list import pytest_sessionfinish, pytest_terminal_summary
"""


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize(
    ("reason", "ci", "code"),
    [("no GPU here", "1", 0), ("a reason of no rule", "1", 1), ("a reason of no rule", "", 0)],
)
def test_run_with_skips(tmp_path: Path, reason: str, ci: str, code: int, processes: str) -> None:
    """A run ends with the list; in CI a skip without a reason fails, also with several processes."""
    (tmp_path / "conftest.py").write_text(SAMPLE)
    body = f"import pytest\ndef test_one():\n    pytest.skip({reason!r})\ndef test_two():\n    pass\n"
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(body)
    (tmp_path / "test_c.py").write_text(
        "import pytest\npytest.importorskip('fcntl_is_not_here', reason='no GPU here')\n"
    )
    # The other plugins that are installed take seconds to load.
    environment = os.environ | {"CI": ci, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = ["-q", "-p", "no:cacheprovider", "-p", "xdist", "-n", processes]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "skipped, and the command that would enable it" in done.stdout
    assert f"{3 if 'GPU' in reason else 2} × {reason}" in done.stdout
    assert ("Enable these tests, or state in tests/skips.toml" in done.stdout) == bool(code)


def list_skip_reasons() -> Iterator[tuple[str, str]]:
    """List where each constant reason or module stands for which a test of this project skips."""
    for path in sorted(TESTS.rglob("*.py")):
        if path == Path(__file__) or path.name == "skip_list.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            texts = [value.value for value in node.args if isinstance(value, ast.Constant)]
            stated = [
                word.value.value
                for word in node.keywords
                if word.arg == "reason" and isinstance(word.value, ast.Constant)
            ]
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            if node.func.attr in ("skip", "skipif") and (stated or texts):
                yield place, str((stated or texts)[0])
            elif node.func.attr == "importorskip" and (stated or texts):
                yield place, stated[0] if stated else f"could not import '{texts[0]}'"


def test_every_skip_has_a_command() -> None:
    """For each skip, tests/skips.toml says what enables it."""
    found = list(list_skip_reasons())
    assert len(found) > 100
    rules, modules = load_rules()
    for place, reason in found:
        (group,) = group_skips([reason], rules, modules)
        assert group.enable != UNKNOWN, f"{place}: {reason}: add what enables it to tests/skips.toml"


def test_rules_of_skips() -> None:
    """Rules are regular expressions, and those that CI allows are few, with a reason each."""
    rules, _ = load_rules()
    for rule in rules:
        re.compile(rule.reason)
        assert rule.enable
        assert rule.allowed is None or len(rule.allowed) > 10
    assert sum(rule.allowed is not None for rule in rules) <= 15


def test_ci_is_strict() -> None:
    """The script of CI makes skips fail."""
    assert "export CI=1\n" in read(".ci/run")
