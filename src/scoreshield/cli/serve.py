"""`scoreshield serve`: the HTTP service, its policy and its API keys."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scoreshield.cli.help import CommandApp
from scoreshield.cli.options import Json, expand_groups
from scoreshield.cli.output import say_line
from scoreshield.errors import InvalidInput

if TYPE_CHECKING:
    from scoreshield.service.access import ApiKey, KeyTable
    from scoreshield.service.core import Service
    from scoreshield.service.people import PeopleTable, PersonFacts
    from scoreshield.service.policy import CallerPolicy, Policy
    from scoreshield.service.tables import InstallationDatabase

_START = "scoreshield serve --collection docs=docs.parquet --epsilon 8 --budget 400"
_DUMMY_START = "scoreshield serve --dummy --records 1000 --dimension 384"
_ADMIN = "admin"
#: The epsilon of a query and of the budget in dummy mode, where none is given.
_DUMMY_EPSILON, _DUMMY_BUDGET = 8.0, 400.0
_DATABASE = "sqlite:///scoreshield-service.db"

#: Options that a policy file does not replace.
_BESIDE_CONFIG = ("config", "check", "dry_run", "audit", "dummy")

app = CommandApp(
    help="Serve private collections over HTTP, within a budget that cannot be overdrawn.",
    epilog=f"{_START}\nscoreshield serve --config policy.yaml\n{_DUMMY_START}",
    invoke_without_command=True,
    no_args_is_help=False,
)
keys_app = CommandApp(help="Create, list, rotate and revoke API keys.", epilog="scoreshield serve keys list")
app.add_typer(keys_app, name="keys")
people_app = CommandApp(
    help="Add, list, change and disable people who sign in.", epilog="scoreshield serve people list"
)
app.add_typer(people_app, name="people")

Config = Annotated[Path | None, typer.Option("--config", help="The policy file.")]
Database = Annotated[str, typer.Option("--database", help="Without --config: the database of the service.")]
PersonName = Annotated[str, typer.Argument(help="The name.")]
PersonCollections = Annotated[
    list[str] | None, typer.Option("--collection", help="A collection that the person may see. May be repeated.")
]
AllCollections = Annotated[
    bool, typer.Option("--all-collections", help="The person may see all collections, also later ones.")
]


@dataclass(frozen=True)
class SimpleOptions:
    """What is served without a policy file, and where."""

    collection: Annotated[
        list[str] | None, typer.Option("--collection", help="NAME=FILE of a private collection, without a policy file.")
    ] = None
    epsilon: Annotated[float | None, typer.Option(help="The epsilon of one query.")] = None
    delta: Annotated[float, typer.Option(help="The delta of one query, for Gaussian noise.")] = 0.0
    budget: Annotated[float | None, typer.Option(help="The most epsilon that may ever be spent per collection.")] = None
    budget_delta: Annotated[float, typer.Option(help="The delta that the budget is counted at.")] = 0.0
    mechanism: Annotated[str, typer.Option(help="auto, anchored, staircase, laplace, gaussian or optimal.")] = "auto"
    array: Annotated[
        str | None, typer.Option(help="The column or array of the vectors, where a file holds several.")
    ] = None
    ids: Annotated[str | None, typer.Option(help="The column or array of public ids.")] = None
    field: Annotated[
        list[str] | None, typer.Option(help="A public column or array, shown and filterable. May be repeated.")
    ] = None
    text: Annotated[str | None, typer.Option(help="The public field that holds the text of a record.")] = None
    embedder: Annotated[
        str | None, typer.Option(help="Makes vectors of text queries: 'hashing', or MODULE:FUNCTION.")
    ] = None
    dummy: Annotated[
        bool, typer.Option("--dummy", help="Serve synthetic records of the same shape, with a throw-away budget.")
    ] = False
    records: Annotated[int | None, typer.Option(help="With --dummy: the number of synthetic records.")] = None
    dimension: Annotated[int | None, typer.Option(help="With --dummy: the dimension of synthetic records.")] = None
    address: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8741
    folder: Annotated[Path, typer.Option(help="Where the database and the installation key are kept.")] = Path()

    def make_policy(self) -> Policy:
        """Make the policy that the options mean."""
        from scoreshield.service.policy import check_policy, place_files

        search = {"mechanism": self.mechanism, "epsilon": self.epsilon, "delta": self.delta}
        budget = {"epsilon": self.budget, "delta": self.budget_delta}
        facts: dict[str, Any] = {
            "array": self.array,
            "ids": self.ids,
            "fields": self.field or [],
            "text": self.text,
            "embedder": self.embedder,
        }
        collections = self.collection or []
        if not self.dummy and not self.folder.is_dir():
            raise InvalidInput(
                f"There is no folder {self.folder}. Make it first; a new folder starts with a whole budget."
            )
        if self.dummy:  # it needs no file
            search["epsilon"], budget["epsilon"] = self.epsilon or _DUMMY_EPSILON, self.budget or _DUMMY_BUDGET
            facts |= {"records": self.records, "dimension": self.dimension}
            collections = collections or ["docs"]
        content = _write_policy(collections, search, budget, facts)
        content["installation"] = {"address": self.address, "port": self.port}
        return _read_files_from_here(place_files(check_policy(content), self.folder), self.collection or [])


@app.callback()
@expand_groups
def serve_command(
    *,
    context: typer.Context,
    config: Config = None,
    check: Annotated[bool, typer.Option("--check", help="Check the policy and stop.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print who may do what, what a query costs and how many fit, and stop.")
    ] = False,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit", help="Serve the mechanisms without records, for an audit: each request brings its collection."
        ),
    ] = False,
    options: SimpleOptions,
) -> None:
    """Serve private collections over HTTP, within a budget that cannot be overdrawn."""
    if context.invoked_subcommand is not None:
        return
    with _explain_missing_extra():
        from scoreshield.service.policy import find_open_secrets, read_policy

        if (options.records is not None or options.dimension is not None) and not options.dummy:
            raise InvalidInput("--records and --dimension are for --dummy: a real collection has its own.")
        if config is not None and options.collection:
            raise InvalidInput("--config and --collection exclude each other: the policy file names collections.")
        if config is not None:
            _reject_settings(context)
        with tempfile.TemporaryDirectory(prefix="scoreshield-dummy-") if options.dummy else nullcontext("") as place:

            def read_served() -> Policy:
                from scoreshield.service.dummy import make_dummy_policy

                read = options.make_policy() if config is None else read_policy(config)
                return make_dummy_policy(read, Path(place)) if options.dummy else read

            policy = read_served()
            for sentence in find_open_secrets(policy, config):
                typer.echo(f"WARNING: {sentence}", err=True)
            if check or dry_run:
                _show_policy(policy, is_described=dry_run)
                return
            if audit:
                _serve_audit(policy)
                return
            _serve(policy, read_served, config, is_dummy=options.dummy)


def _reject_settings(context: typer.Context) -> None:
    """Reject options that a policy file replaces: the command would ignore them."""
    given = sorted(
        f"--{name.replace('_', '-')}"
        for name in context.params
        if name not in _BESIDE_CONFIG and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    )
    if given:
        verb = "is a setting" if len(given) == 1 else "are settings"
        raise InvalidInput(f"{' and '.join(given)} {verb} of the policy file, so --config takes no such option.")


def _write_policy(
    collections: list[str], search: dict[str, Any], budget: dict[str, Any], facts: dict[str, Any]
) -> dict[str, Any]:
    """Write the policy that the options of the one command mean: one caller and one person, who may do everything."""
    from scoreshield.service.policy import MOST_EPSILON, NAME_PATTERN

    if not collections:
        raise InvalidInput("Give --config FILE, or --collection NAME=FILE with --epsilon and --budget.")
    if search["epsilon"] is None or budget["epsilon"] is None:
        raise InvalidInput("--collection needs --epsilon, of one query, and --budget, of all queries together.")
    for option, value in (("--epsilon", search["epsilon"]), ("--budget", budget["epsilon"])):
        if not 0 < value <= MOST_EPSILON:
            raise InvalidInput(
                f"{option} must be above 0 and at most {MOST_EPSILON:,.0f}. A larger epsilon limits no attacker in "
                "practice, so the service does not state it as a promise."
            )
    if search["mechanism"] == "gaussian" and not search["delta"]:
        raise InvalidInput(
            "--mechanism gaussian needs --delta, such as --delta 1e-8, and --budget-delta for all queries together, "
            "such as --budget-delta 1e-6."
        )
    found = {}
    for text in collections:
        name, equals, file = text.partition("=")
        if (not equals or not file) and "records" not in facts:
            raise InvalidInput(f"--collection must be NAME=FILE. Got {text[:80]!r} instead.")
        if not re.fullmatch(NAME_PATTERN, name):
            raise InvalidInput(
                f"The name of a collection has small letters, digits, - and _, at most 40, and begins with a letter or "
                f"a digit. Got {name[:80]!r} instead."
            )
        if name in found:
            raise InvalidInput(f"--collection names {name[:40]!r} twice.")
        found[name] = {"file": file or None, **facts, "budget": budget, "search": search}
    grants = {name: {"actions": ["search", "entries", "metrics"]} for name in found}
    admin = {"role": "admin", "collections": grants, "people": [_ADMIN]}
    return {"collections": found, "callers": {_ADMIN: admin}}


def _read_files_from_here(policy: Policy, collections: list[str]) -> Policy:
    """Read collections from the working folder, wherever the state of the service is kept."""
    files = dict(text.partition("=")[::2] for text in collections)
    changed = {
        name: one.model_copy(update={"file": Path(files[name]).absolute()}) if files.get(name) else one
        for name, one in policy.collections.items()
    }
    return policy.model_copy(update={"collections": changed})


def _show_policy(policy: Policy, *, is_described: bool) -> None:
    from scoreshield.service.summary import describe_index_charges, describe_policy, find_policy_faults

    faults = find_policy_faults(policy)
    for fault in faults:
        say_line(fault)
    if faults:
        raise typer.Exit(2)
    if is_described:
        for line in describe_policy(policy):
            say_line(line)
    for line in describe_index_charges(policy):
        say_line(line)
    say_line("The policy is consistent.")


def _serve_audit(policy: Policy) -> None:
    """Serve the mechanisms of a policy for an audit. Nothing of the collections is read and nothing is charged."""
    from scoreshield.service.audit_mode import AuditService
    from scoreshield.service.server import run_server

    def announce(address: str) -> None:
        say_line("Serving for an audit: no records are read, and nothing is charged.")
        for name, one in policy.collections.items():
            for action in (one_action for one_action in one.list_actions() if one_action != "index"):
                offer = getattr(one, action)
                claim = f"--epsilon {offer.epsilon}"
                if getattr(offer, "delta", 0.0):
                    claim += f" --delta {offer.delta}"
                path = f"{address}/v1/audit/{name}/{action.replace('_', '-')}"
                say_line(f"  scoreshield audit {path} {claim} --adjacency replace --output-field hits")

    run_server(AuditService(policy), announce)


def _serve(policy: Policy, read: Callable[[], Policy], config: Path | None, *, is_dummy: bool) -> None:
    from scoreshield.service.core import Service
    from scoreshield.service.server import run_server
    from scoreshield.service.summary import describe_offers

    service = Service(policy)

    def announce(address: str) -> None:
        say_line(f"Serving {', '.join(service.collections)} at {address}")
        if is_dummy:
            say_line("Dummy mode: the records are synthetic, and the budget ends with this process.")
            say_line("There are no reports, no sign-in at a provider and no traces.")
        for one in service.collections.values():
            say_line(f"{one.name}:")
            left = {action: f"queries left: {one.count_left(action):,}" for action in one.offers if action != "index"}
            for line in describe_offers(one.policy, one.offers, left):
                say_line(line)
        # Secrets are made when the port is open: a start that fails would show them to no one.
        where = _name_installation(policy.installation.database, config)
        text = _announce_keys(service, where, is_simple=config is None, is_dummy=is_dummy)
        if config is None:
            _announce_admin(service, address, where)
        elif not is_dummy:
            _announce_people(service, address, where)
        served = next(iter(service.collections.values()))
        say_line("A first look, which costs nothing:")
        if text is not None:
            say_line(f"  export SCORESHIELD_KEY={text}")
        curl = '  curl -H "Authorization: Bearer $SCORESHIELD_KEY"'
        say_line(f"{curl} {address}/v1/collections/{served.name}/budget")
        body = f"{curl} -H 'Content-Type: application/json' -d"
        say_line(f"A search, with {served.data.dimension} numbers for the dots:")
        say_line(f"{body} '{{\"query\": [...]}}' {address}/v1/collections/{served.name}/search")
        if served.policy.embedder is not None:
            say_line("The same for a text:")
            say_line(f'{body} \'{{"query": "..."}}\' {address}/v1/vector_stores/{served.name}/search')
        say_line(f"Public key of the signatures: {service.key.signer.public}")

    run_server(service, announce, read)


def _name_installation(database: str, config: Path | None) -> str:
    """Name the installation as an option of the commands for keys and people; nothing where it is their default."""
    if config is not None:
        return f" --config {shlex.quote(str(config))}"
    own, default = (Path(address.removeprefix("sqlite:///")).absolute() for address in (database, _DATABASE))
    if own == default or not database.startswith("sqlite:///"):  # the address of a server may hold a password
        return ""
    return f" --database {shlex.quote(database)}"


def _announce_keys(service: Service, where: str, *, is_simple: bool, is_dummy: bool) -> str | None:
    """Make and show the keys of a first start; return one of them, or None if there were keys before."""
    known = {key.caller for key in service.keys.list_keys()}
    wanted = [_ADMIN] if is_simple else list(service.policy.callers) if is_dummy else []
    shown = {caller: service.keys.create(caller)[1] for caller in wanted if caller not in known}
    create = "scoreshield serve keys create --caller"
    for caller, text in shown.items():
        say_line(f"Admin key, shown once: {text}" if is_simple else f"Dummy key of {caller}: {text}")
    if is_simple and not shown:
        say_line(f"The admin key was shown at the first start. '{create} {_ADMIN}{where}' makes another.")
    elif not known and not shown and service.policy.callers:
        say_line(f"There is no key yet. '{create} {next(iter(service.policy.callers))}{where}' makes one.")
    return next(iter(shown.values()), None)


def _announce_admin(service: Service, address: str, where: str) -> None:
    """Make the person who signs in first, and show the password."""
    from scoreshield.service.people import make_password

    if service.people.list_people():
        reset = f"scoreshield serve people set-password {_ADMIN}{where}"
        say_line(f"People sign in at {address}/sign-in. '{reset}' sets a new password.")
        return
    password = make_password()
    service.people.create(_ADMIN, "admin", None, password)
    say_line(f"Sign in at {address}/sign-in as {_ADMIN} with the password, shown once: {password}")


def _announce_people(service: Service, address: str, where: str) -> None:
    """Say where people sign in, or how the first one is added."""
    if service.people.list_people() or service.policy.installation.oidc is not None:
        say_line(f"People sign in at {address}/sign-in.")
        return
    create = f"scoreshield serve people create NAME --role officer --all-collections{where}"
    say_line(f"No one can sign in yet. '{create}' adds a person.")


@keys_app.command("create", epilog="scoreshield serve keys create --config policy.yaml --caller app")
def create_key_command(
    caller: Annotated[str, typer.Option(help="The caller of the policy that the key is for.")],
    config: Config = None,
    database: Database = _DATABASE,
    collection: Annotated[list[str] | None, typer.Option(help="Only this collection. May be repeated.")] = None,
    action: Annotated[list[str] | None, typer.Option(help="Only this action. May be repeated.")] = None,
    days: Annotated[float | None, typer.Option(help="The key ends after this many days.")] = None,
    as_json: Json = False,
) -> None:
    """Create an API key. It is shown once, and only its hash is kept."""
    expires = _find_end(days)
    with _open_keys(config, database, caller, collection, action) as keys:
        key, text = keys.create(caller, collections=collection, actions=action, expires=expires)
    _print_new_key(key, text, as_json)


def _find_end(days: float | None) -> datetime | None:
    if days is not None and not 0 < days < 36_500:
        raise InvalidInput("--days must be above 0 and below 36,500.")
    return None if days is None else datetime.now(UTC) + timedelta(days=days)


@keys_app.command("list", epilog="scoreshield serve keys list --config policy.yaml")
def list_keys_command(config: Config = None, database: Database = _DATABASE, as_json: Json = False) -> None:
    """List the keys: prefix, caller, end and state. No secret is shown."""
    with _open_keys(config, database) as keys:
        found = keys.list_keys()
    if as_json:
        typer.echo(json.dumps([key.describe() for key in found]))
        return
    if not found:
        say_line("There is no key yet; 'scoreshield serve keys create' makes one.")
    for key in found:
        facts = key.describe()
        end = facts["expires"] or "never"
        say_line(f"{key.prefix}  {key.caller}  {facts['state']}  created {facts['created']}  expires {end}")


@keys_app.command("rotate", epilog="scoreshield serve keys rotate 1a2b3c4d --overlap-hours 24")
def rotate_key_command(
    prefix: Annotated[str, typer.Argument(help="The public prefix of the key.")],
    config: Config = None,
    database: Database = _DATABASE,
    overlap_hours: Annotated[float, typer.Option(help="For how long both keys are valid.")] = 24.0,
    days: Annotated[
        float | None, typer.Option(help="The new key ends after this many days; by default with the old one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the successor of a key; both are valid for a while."""
    if not 0 <= overlap_hours <= 24 * 365:
        raise InvalidInput("--overlap-hours must be between 0 and 8,760.")
    expires = _find_end(days)
    with _open_keys(config, database) as keys:
        key, text = keys.rotate(prefix, overlap=timedelta(hours=overlap_hours), expires=expires)
    _print_new_key(key, text, as_json)


@keys_app.command("revoke", epilog="scoreshield serve keys revoke 1a2b3c4d")
def revoke_key_command(
    prefix: Annotated[str, typer.Argument(help="The public prefix of the key.")],
    config: Config = None,
    database: Database = _DATABASE,
) -> None:
    """Revoke a key. It takes effect within a second on every replica."""
    with _open_keys(config, database) as keys:
        keys.revoke(prefix)
    say_line(f"Revoked {prefix}.")


@people_app.command("create", epilog="scoreshield serve people create ada --role officer --collection docs")
def create_person_command(
    name: Annotated[str, typer.Argument(help="The name, in small letters. It may be an address of e-mail.")],
    role: Annotated[str, typer.Option(help="reader, curator, officer or admin.")],
    config: Config = None,
    database: Database = _DATABASE,
    collection: PersonCollections = None,
    all_collections: AllCollections = False,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="The person signs in by OpenID Connect alone.")
    ] = False,
) -> None:
    """Add a person. The password is asked for, or read from standard input."""
    chosen = _choose_collections(collection, all_collections)
    with _open_people(config, database, chosen or [], is_new=True) as people:
        # The table checks the role; the command line has it as a text.
        made = people.create(name, role, chosen, None if no_password else _read_password())  # type: ignore[arg-type]
    say_line(_describe_person(made))


@people_app.command("list", epilog="scoreshield serve people list --config policy.yaml")
def list_people_command(config: Config = None, database: Database = _DATABASE) -> None:
    """List the people: name, role, collections and state."""
    with _open_people(config, database) as people:
        found = people.list_people()
    if not found:
        say_line("There is no person yet; 'scoreshield serve people create NAME' adds one.")
    for one in found:
        say_line(_describe_person(one))


@people_app.command("change", epilog="scoreshield serve people change ada --role admin --all-collections")
def change_person_command(
    name: PersonName,
    role: Annotated[str | None, typer.Option(help="reader, curator, officer or admin. Unchanged by default.")] = None,
    config: Config = None,
    database: Database = _DATABASE,
    collection: PersonCollections = None,
    all_collections: AllCollections = False,
) -> None:
    """Change the role or the collections of a person, and end the sessions of the person."""
    chosen = _choose_collections(collection, all_collections)
    if role is None and chosen == []:
        raise InvalidInput("Nothing would change: give --role, --collection or --all-collections.")
    with _open_people(config, database, chosen or []) as people:
        changed = people.change(name, role, "unchanged" if chosen == [] else chosen)  # type: ignore[arg-type]
    say_line(_describe_person(changed))


@people_app.command("set-password", epilog="scoreshield serve people set-password ada --config policy.yaml")
def set_password_command(name: PersonName, config: Config = None, database: Database = _DATABASE) -> None:
    """Set the password of a person, and end the sessions of the person."""
    with _open_people(config, database) as people:
        person = people.set_password(name, _read_password())
    if person.disabled is None:
        say_line(f"The password of {name} is set, and all sessions of {name} have ended.")
        return
    enable = f"scoreshield serve people enable {name}{_name_installation(database, config)}"
    say_line(f"The password of {name} is set, but {name} is still disabled; '{enable}' enables {name}.")


@people_app.command("disable", epilog="scoreshield serve people disable ada --config policy.yaml")
def disable_person_command(name: PersonName, config: Config = None, database: Database = _DATABASE) -> None:
    """Disable a person, and end the sessions of the person."""
    with _open_people(config, database) as people:
        people.disable(name)
    say_line(f"Disabled {name}.")


@people_app.command("enable", epilog="scoreshield serve people enable ada --config policy.yaml")
def enable_person_command(name: PersonName, config: Config = None, database: Database = _DATABASE) -> None:
    """Enable a person who was disabled. The password, the role and the collections are the old ones."""
    with _open_people(config, database) as people:
        people.enable(name)
    say_line(f"Enabled {name}.")


@app.command("rotate-signing-key", epilog="scoreshield serve rotate-signing-key scoreshield-installation.key")
def rotate_signing_key_command(
    key_file: Annotated[Path, typer.Argument(help="The installation key. Restart the service afterwards.")],
) -> None:
    """Add a new signing key. Answers that were signed before keep their bytes."""
    with _explain_missing_extra():
        from scoreshield.service.installation import rotate_signing_key

        say_line(f"New answers will be signed by {rotate_signing_key(key_file)}.")


@contextmanager
def _open_keys(
    config: Path | None,
    database: str,
    caller: str | None = None,
    collections: list[str] | None = None,
    actions: list[str] | None = None,
) -> Iterator[KeyTable]:
    with _explain_missing_extra():
        from scoreshield.service.access import KeyTable
        from scoreshield.service.policy import ROLE_ACTIONS, read_policy

        policy = None if config is None else read_policy(config)
        if policy is None and caller not in (None, _ADMIN):
            raise InvalidInput("Without --config there is only the caller admin: give the policy file of the caller.")
        if policy is not None:
            database = policy.installation.database
            if caller is not None and caller not in policy.callers:
                raise InvalidInput(f"The policy has no caller {caller[:40]!r}.")
            for name in collections or []:
                if caller is not None and name not in policy.callers[caller].collections:
                    raise InvalidInput(f"The policy grants caller {caller} no collection {name[:40]!r}.")
        for name in actions or []:
            if name not in ROLE_ACTIONS["admin"]:
                raise InvalidInput(f"There is no action {name[:40]!r}; there are {', '.join(ROLE_ACTIONS['admin'])}.")
            if policy is not None and caller is not None:
                _check_action(policy.callers[caller], caller, name, collections)
        is_new = policy is None and not Path(database.removeprefix("sqlite:///")).exists()
        with _open_database(database, is_made=caller is not None) as opened:
            if is_new and database.startswith("sqlite:///"):
                typer.echo(
                    f"NOTE: {database} is new. A service that runs on another database has no such key.", err=True
                )
            yield KeyTable(opened)


def _check_action(granted: CallerPolicy, caller: str, action: str, collections: list[str] | None) -> None:
    """Reject an action that the policy does not grant: the key could do nothing with it."""
    for name in collections or granted.collections:
        if action in granted.collections[name].actions:
            return
    raise InvalidInput(f"The policy does not grant {action} to caller {caller} on these collections.")


@contextmanager
def _open_people(
    config: Path | None, database: str, collections: Sequence[str] = (), *, is_new: bool = False
) -> Iterator[PeopleTable]:
    with _explain_missing_extra():
        from scoreshield.service.people import PeopleTable
        from scoreshield.service.policy import read_policy

        if config is not None:
            policy = read_policy(config)
            database = policy.installation.database
            for name in collections:
                if name not in policy.collections:
                    raise InvalidInput(f"The policy serves no collection {name[:40]!r}.")
        with _open_database(database, is_made=is_new and config is not None) as opened:
            yield PeopleTable(opened)


@contextmanager
def _open_database(database: str, *, is_made: bool) -> Iterator[InstallationDatabase]:
    """Open the tables of an installation. Only a new key or a new person makes a database."""
    from scoreshield.service.tables import InstallationDatabase, check_database

    if not is_made:
        check_database(database)
    opened = InstallationDatabase(database)
    try:
        opened.prepare()
        yield opened
    finally:
        opened.close()


def _choose_collections(collection: list[str] | None, all_collections: bool) -> list[str] | None:
    """Return the collections that the options name; None for all."""
    if all_collections and collection:
        raise InvalidInput("--collection and --all-collections exclude each other.")
    return None if all_collections else collection or []


def _read_password() -> str:
    """Read a password: hidden and twice from a terminal, or the first line of standard input."""
    if sys.stdin.isatty():
        typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
        return typed
    return sys.stdin.readline().rstrip("\r\n")


def _describe_person(person: PersonFacts) -> str:
    seen = "all collections" if person.collections is None else ", ".join(person.collections) or "no collection"
    state = "disabled" if person.disabled is not None else "enabled"
    way = "by password" if person.has_password else "without a password"
    return f"{person.name}  {person.role}  {state}  {way}  {seen}"


def _print_new_key(key: ApiKey, text: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({**key.describe(), "key": text}))
        return
    say_line(f"Key {key.prefix} for {key.caller}, shown once: {text}")


@contextmanager
def _explain_missing_extra() -> Iterator[None]:
    """Say which extra is missing. Other failures of an import are faults of their own."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in (
            "alembic",
            "argon2",
            "fastapi",
            "jinja2",
            "prometheus_client",
            "pydantic",
            "sqlalchemy",
            "uvicorn",
            "yaml",
        ):
            raise
        raise InvalidInput("The service needs the 'service' extra: pip install 'scoreshield[service]'.") from None
