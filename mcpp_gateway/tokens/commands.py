"""The command `mcpp token`: tokens of the local pod, and signed tokens of any gateway."""

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcpp.cli.extras import importing
from mcpp.cli.shorthand import read_filter
from mcpp.client import local_pod
from mcpp.errors import CapabilityError, McppError
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway import config as configuration
from mcpp_gateway import links, log_format
from mcpp_gateway.config import Config, ConfigError
from mcpp_gateway.config.checks import check_participant_limits
from mcpp_gateway.config.errors import BadKeyError
from mcpp_gateway.config.participants import id_mistake
from mcpp_gateway.core.limits import ParticipantLimits
from mcpp_gateway.tokens.revocations import MAX_DAYS, Revocations, UnknownNameError

if TYPE_CHECKING:
    from mcpp_gateway.cluster.shared.token_command import ClusterTokens
    from mcpp_gateway.tokens.signing import IssuedToken
    from mcpp_gateway.tokens.store import TokenStore

_EXIT_USAGE: Final = 2
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def main(argv: list[str]) -> int:
    """Print, sign, list or revoke tokens of participants."""
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments)
    except (McppError, OSError) as error:
        _warn(str(error))
        return 1 if isinstance(error, UnknownNameError) else _EXIT_USAGE


def _warn(text: str) -> None:
    print(f"mcpp token: {log_format.escape(text)}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp token",
        description="Print the token of a participant of the pod in this folder, adding the "
        "participant if it is new. With --expires, sign a token that ends by itself: no file "
        "is changed, and every gateway with the same keys accepts it.",
    )
    parser.add_argument("name", nargs="?", help="the participant's id, or a token's id")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a gateway's configuration, with [tokens]"
    )
    parser.add_argument(
        "--multiple", action="store_true", help="allow several connections at a time"
    )
    parser.add_argument(
        "--person", action="store_true", help="a person, whose chats end a loop of agents"
    )
    signed = parser.add_argument_group("signed tokens")
    signed.add_argument(
        "--expires", type=_duration, metavar="TIME", help=f"such as 30d, 12h; up to {MAX_DAYS}d"
    )
    signed.add_argument("--pod", action="append", help="a pod that it is for; may be repeated")
    signed.add_argument(
        "--can",
        action="append",
        type=_pattern,
        metavar="KIND",
        help="a kind, or a JSON pattern, that it may send; may be repeated (default: all)",
    )
    signed.add_argument("--hears", metavar="FILTER", help="such as 'not type:reasoning', or JSON")
    signed.add_argument(
        "--limit",
        action="append",
        type=_limit,
        metavar="NAME=N",
        help="such as messages_per_second=20: at most so many, if the pod allows more",
    )
    signed.add_argument("--admin", action="store_true", help="it may use the admin's interface")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true", help="list tokens that were issued")
    instead.add_argument(
        "--revoke",
        action="store_true",
        help="end the participant's tokens, or one by its id, and close their connections",
    )
    instead.add_argument("--new-key", action="store_true", help="sign with a new key from now on")
    instead.add_argument(
        "--delete-key",
        metavar="ID",
        help="delete a key, and close the connections of all tokens that it has signed",
    )
    instead.add_argument(
        "--link",
        action="store_true",
        help="print a link that signs a browser in; it works once, for two minutes",
    )
    return parser


def _run(arguments: argparse.Namespace) -> int:
    pod = local_pod.find() if arguments.config is None else None
    if pod is None and arguments.config is None:
        raise ConfigError("no pod found; start one with `mcpp up`, or name a --config")
    _check_options(arguments)
    if arguments.list:
        print("\n".join(_table(arguments, pod)))
    elif arguments.new_key:
        print(f"signing with key {_store(arguments, pod).add_key()}")
    elif arguments.delete_key is not None:
        store = _store(arguments, pod)
        store.delete_key(arguments.delete_key)
        print(f"deleted key {arguments.delete_key}; signing with key {store.key_ids()[-1]}")
    elif arguments.revoke:
        _revoke(arguments, pod)
    elif arguments.expires is not None:
        print(_sign(arguments, pod))
    elif pod is None and arguments.link:
        raise ConfigError("--link is for the pod of `mcpp up`, without --config")
    elif pod is None or _signed_only(arguments):
        raise ConfigError("a signed token needs --expires, such as --expires 30d")
    else:
        token = pod.add(arguments.name, multiple=arguments.multiple, is_person=arguments.person)
        print(links.request_link(pod, token) if arguments.link else token)
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for options that do not go together: none of them may be ignored."""
    other = [
        option
        for option, is_given in (
            ("--list", arguments.list),
            ("--new-key", arguments.new_key),
            ("--delete-key", arguments.delete_key is not None),
        )
        if is_given
    ]
    if other and arguments.name is not None:
        raise ConfigError(f"{other[0]} is for all participants: leave out {arguments.name!r}")
    if not other and not arguments.name:
        raise ConfigError("name a participant")
    action = "--revoke" if arguments.revoke else "--link" if arguments.link else "".join(other)
    given = ["--expires"] if arguments.expires is not None else []
    given += _signed_only(arguments)
    if not arguments.link:
        given += [f"--{name}" for name in ("multiple", "person") if getattr(arguments, name)]
    if action and given:
        raise ConfigError(f"{action} does not go with {given[0]}")


def _signed_only(arguments: argparse.Namespace) -> list[str]:
    """Return the options that only signed tokens have, besides --expires."""
    found = [
        f"--{name}"
        for name in ("can", "hears", "limit", "pod")
        if getattr(arguments, name) is not None
    ]
    return [*found, "--admin"] if arguments.admin else found


def _config(arguments: argparse.Namespace, pod: local_pod.LocalPod | None) -> Config:
    return configuration.load(arguments.config if pod is None else pod.path)


def _store(
    arguments: argparse.Namespace, pod: local_pod.LocalPod | None
) -> "TokenStore | ClusterTokens":
    config = _config(arguments, pod)
    if config.shares_tokens:
        with importing("cluster"):
            from mcpp_gateway.cluster.shared.token_command import ClusterTokens
        return ClusterTokens(config)
    try:
        from mcpp_gateway.tokens.store import TokenStore
    except ModuleNotFoundError:
        raise ConfigError("signed tokens need PyJWT: pip install 'mcpp-pods[gateway]'") from None
    folder = config.token_folder
    if folder is None:
        if pod is None:
            raise ConfigError(f'{arguments.config}: no [tokens] path, such as path = "tokens"')
        folder = str(pod.folder / "tokens")
    store = TokenStore(Path(folder))
    store.check_user()
    is_new = not store.folder.exists()
    store.create()
    if is_new and pod is not None:
        pod.reload()
    return store


def _sign(arguments: argparse.Namespace, pod: local_pod.LocalPod | None) -> str:
    mistake = id_mistake(arguments.name)
    if mistake is not None:
        raise ConfigError(mistake)
    config = _config(arguments, pod)
    pods = arguments.pod or list(config.pods)
    for each in pods:
        if each not in config.pods:
            raise ConfigError(f"no pod {each!r}; there are: {', '.join(config.pods)}")
        if any(one.id == arguments.name for one in config.pods[each]):
            raise ConfigError(f"{arguments.name!r} is configured in pod {each!r} with a token")
    rights: dict[str, Any] = {}
    if arguments.can:
        rights["capabilities"] = arguments.can
    if arguments.hears is not None:
        if not arguments.hears.strip():
            raise ConfigError("--hears must not be empty: the token would hear everything")
        rights["hears"] = read_filter(arguments.hears).to_json()
    if arguments.limit:
        rights["limits"] = dict(arguments.limit)
    for name in ("multiple", "person", "admin"):
        if getattr(arguments, name):
            rights[name] = True
    now = time.time()
    store = _store(arguments, pod)
    return store.sign(arguments.name, pods, rights, now=now, expires=now + arguments.expires)


def _revoke(arguments: argparse.Namespace, pod: local_pod.LocalPod | None) -> None:
    was_configured = pod is not None and pod.remove(arguments.name)
    config = _config(arguments, pod)
    if pod is not None and not (pod.folder / "tokens").exists():
        if not was_configured:
            raise UnknownNameError(arguments.name, "participant")
        return
    if pod is None and any(
        each.id == arguments.name for settings in config.pods.values() for each in settings
    ):
        text = f"{arguments.name!r} has a token in {arguments.config}, which stays valid"
        _warn(f"{text}: change it there, and reload")
    may_be_unknown = was_configured or bool(config.issuers)
    revoked = _store(arguments, pod).revoke(
        arguments.name, time.time(), may_be_unknown=may_be_unknown
    )
    if not was_configured:
        print(f"revoked until {_time(revoked.revocations[0].until)}")
        if not revoked.was_issued:
            _warn(
                f"no token of {arguments.name!r} is known: it is revoked in case another issuer "
                "has signed one, so check the spelling"
            )


def _table(arguments: argparse.Namespace, pod: local_pod.LocalPod | None) -> Iterator[str]:
    config = _config(arguments, pod)
    yield f"{'id':16}  {'participant':20}  {'pods':20}  expires"
    for name, settings in config.pods.items():
        for each in settings:
            yield f"{'(configured)':16}  {each.id:20}  {name:20}  never"
    if not config.has_own_tokens and (pod is None or not (pod.folder / "tokens").exists()):
        return
    store, now, revoked = _store(arguments, pod), time.time(), Revocations()
    revoked.add(store.revocations(), now)
    keys = store.key_ids()
    for issued in store.issued():
        yield _line(issued, revoked, keys, now)
    yield f"keys: {', '.join(keys)}; the last one signs"


def _line(issued: "IssuedToken", revoked: Revocations, keys: Sequence[str], now: float) -> str:
    ends = _time(issued.expires)
    if revoked.covers_token(issued.participant, issued.id, issued.issued):
        ends = "revoked"
    elif issued.expires <= now:
        ends = f"expired {ends}"
    elif issued.key not in (None, *keys):
        ends = f"key {issued.key} deleted"
    return f"{issued.id:16}  {issued.participant:20}  {','.join(issued.pods):20}  {ends}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="minutes")


def _duration(text: str) -> float:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= MAX_DAYS * 86_400:
        reason = f"must be a time such as 30d or 12h, up to {MAX_DAYS}d, not {text!r}"
        raise argparse.ArgumentTypeError(reason)
    return float(seconds)


def _pattern(text: str) -> dict[str, Any]:
    pattern: dict[str, Any] = {"kind": text}
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty: the token could send nothing")
    if text.startswith("{"):
        try:
            pattern = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    try:
        Capabilities([pattern])
    except CapabilityError as error:
        raise argparse.ArgumentTypeError(f"{error.path[4:]} {error.reason}") from None
    return pattern


def _limit(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        value: float = msgspec.json.decode(number, type=int | float)
        limits = msgspec.convert({name: value}, ParticipantLimits)
        check_participant_limits(limits, "limits")
    except msgspec.MsgspecError:
        known = ", ".join(ParticipantLimits.__struct_fields__)
        raise argparse.ArgumentTypeError(f"must be NAME=NUMBER with one of {known}") from None
    except BadKeyError as error:
        raise argparse.ArgumentTypeError(f"{name} {error.reason}") from None
    return name, value
