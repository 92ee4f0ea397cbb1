"""Forged tokens: other algorithms, other keys, other audiences, and what is no token at all."""

import asyncio
import hmac
import json
import socket
import threading
import time
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from mcpp_gateway import config
from mcpp_gateway.config import ConfigError
from mcpp_gateway.tokens import fetching
from mcpp_gateway.tokens.claims import Grant, RightsReader, Template
from mcpp_gateway.tokens.key_cache import KEEP_SECONDS, REFRESH_SECONDS, KeyCache
from mcpp_gateway.tokens.keys import KeySetError, VerifyingKey, read_key_set, read_public_key
from mcpp_gateway.tokens.verdicts import BadToken, Unverifiable
from mcpp_gateway.tokens.verification import Issuer, Issuers
from tests.gateway.tokens.issuer import LoopbackIssuer, jwk, new_key, part

ALGORITHMS = ("EdDSA", "ES256", "RS256")


def rights(issuer: str) -> RightsReader:
    return RightsReader(issuer, Template(), "mcpp")


def verifier(issuer: LoopbackIssuer, *, renews: bool = False) -> Issuers:
    loop = asyncio.new_event_loop()
    cache = KeyCache("company", lambda: read_key_set(issuer.key_set()), loop, time.time)
    cache._renews = renews
    cache.load()
    loop.close()
    return Issuers([Issuer(None, "mcpp", cache, rights("company"))], ["demo"])


@pytest.mark.rule("S-02")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_each_algorithm_is_accepted(algorithm: str) -> None:
    issuer = LoopbackIssuer(algorithm)
    found = verifier(issuer).verify(issuer.sign("ada"), time.time())
    assert isinstance(found, Grant)
    assert found.settings.id == "ada"


@pytest.mark.rule("S-08")
def test_keys_of_other_algorithms_do_not_count_among_those_that_are_tried() -> None:
    issuer = LoopbackIssuer()
    issuer.names_keys = False
    others = [jwk(new_key("ES256"), "", "ES256") for _ in range(4)]
    for each in others:
        del each["kid"]
    keys = json.dumps({"keys": [*others, *json.loads(issuer.key_set())["keys"]]}).encode()
    issuer.key_set = lambda: keys  # type: ignore[method-assign]
    assert isinstance(verifier(issuer).verify(issuer.sign("ada"), time.time()), Grant)


def unsigned(issuer: LoopbackIssuer, algorithm: str, signature: str = "") -> str:
    claims = {"aud": "mcpp", "sub": "ada", "exp": time.time() + 60}
    return f"{part({'alg': algorithm, 'kid': issuer.current})}.{part(claims)}.{signature}"


@pytest.mark.rule("S-02")
@pytest.mark.parametrize("algorithm", ["none", "NONE", "", "HS256", "ES384", "PS256"])
def test_other_algorithms_are_refused_whatever_the_signature(algorithm: str) -> None:
    issuer = LoopbackIssuer("RS256")
    for signature in ("", "AA", part({})):
        token = unsigned(issuer, algorithm, signature)
        assert verifier(issuer).verify(token, time.time()) == BadToken()


@pytest.mark.rule("S-02")
@pytest.mark.parametrize("form", [Encoding.PEM, Encoding.DER])
def test_a_public_key_is_never_the_secret_of_an_hmac(form: Encoding) -> None:
    issuer = LoopbackIssuer("RS256")
    public = issuer.keys["first"].public_key()
    secret = public.public_bytes(form, PublicFormat.SubjectPublicKeyInfo)
    for algorithm in ("HS256", "RS256"):
        head = unsigned(issuer, algorithm).rstrip(".")
        digest = hmac.digest(secret, head.encode(), "sha256")
        token = f"{head}.{urlsafe_b64encode(digest).decode().rstrip('=')}"
        assert verifier(issuer).verify(token, time.time()) == BadToken()


@pytest.mark.rule("S-02")
def test_a_key_signs_with_its_own_algorithm_only() -> None:
    issuer = LoopbackIssuer("ES256")
    token = issuer.sign("ada")
    _, claims, signature = token.split(".")
    forged = f"{part({'alg': 'EdDSA', 'kid': 'first'})}.{claims}.{signature}"
    assert verifier(issuer).verify(forged, time.time()) == BadToken()


@pytest.mark.rule("S-02")
def test_keys_in_the_token_itself_are_ignored() -> None:
    issuer, attacker = LoopbackIssuer(), new_key()
    header = {"kid": "first", "jwk": jwk(attacker, "first"), "jku": "http://127.0.0.1:9/x"}
    claims = {"aud": "mcpp", "sub": "ada", "exp": time.time() + 60}
    token = jwt.encode(claims, attacker, algorithm="EdDSA", headers=header)
    assert verifier(issuer).verify(token, time.time()) == BadToken()


@pytest.mark.rule("S-02")
@pytest.mark.parametrize("more", [{"crit": ["exp"]}, {"crit": ["b64"], "b64": False}])
def test_extensions_that_must_be_understood_are_refused(more: dict[str, Any]) -> None:
    issuer = LoopbackIssuer()
    claims = {"aud": "mcpp", "sub": "ada", "exp": time.time() + 60}
    key = issuer.keys["first"]
    header = part({"alg": "EdDSA", "kid": "first", **more})
    signing = f"{header}.{part(claims)}"
    signature = urlsafe_b64encode(key.sign(signing.encode())).decode().rstrip("=")
    assert verifier(issuer).verify(f"{signing}.{signature}", time.time()) == BadToken()


@pytest.mark.rule("S-03", "S-13")
@pytest.mark.parametrize("audience", ["other", None, [], ["other"]])
def test_tokens_for_another_audience_are_refused_with_the_reason(audience: Any) -> None:
    issuer = LoopbackIssuer()
    token = issuer.sign("ada", aud=audience)
    refusal = BadToken("the token is not for this audience (aud)")
    assert verifier(issuer).verify(token, time.time()) == refusal
    forged = token[:-8] + "AAAAAAAA"
    assert verifier(issuer).verify(forged, time.time()) == BadToken()


@pytest.mark.rule("S-03")
def test_issuers_with_the_same_keys_are_told_apart_by_their_audiences() -> None:
    issuer, loop = LoopbackIssuer(), asyncio.new_event_loop()
    cache = KeyCache("any", lambda: read_key_set(issuer.key_set()), loop, time.time)
    cache.load()
    loop.close()
    names = ("people", "agents")
    issuers = Issuers([Issuer(None, name, cache, rights(name)) for name in names], ["demo"])
    for name in names:
        found = issuers.verify(issuer.sign("ada", aud=name), time.time())
        assert isinstance(found, Grant)
        assert found.issuer == name


def with_keys_of(issuer: LoopbackIssuer, rights: RightsReader, iss: str | None) -> Issuer:
    loop = asyncio.new_event_loop()
    cache = KeyCache(rights.issuer, lambda: read_key_set(issuer.key_set()), loop, time.time)
    cache.load()
    loop.close()
    return Issuer(iss, "mcpp", cache, rights)


@pytest.mark.rule("S-03")
@pytest.mark.parametrize(
    ("iss", "allowed"),
    [("https://issuer", "*"), (None, "x-*")],
    ids=["named by the token", "whose template fits"],
)
def test_an_issuer_that_lists_the_keys_of_another_does_not_take_its_tokens(
    iss: str | None, allowed: str
) -> None:
    company = LoopbackIssuer()
    thief = RightsReader("thief", Template(participants=(allowed,)), "mcpp")
    issuers = Issuers(
        [with_keys_of(company, thief, None), with_keys_of(company, rights("company"), iss)],
        ["demo"],
    )
    found = issuers.verify(company.sign("ada"), time.time())
    assert isinstance(found, Grant)
    assert found.issuer == "company"
    expired = issuers.verify(company.sign("ada", exp=time.time() - 60), time.time())
    assert isinstance(expired, BadToken)
    assert expired.reason is not None


@pytest.mark.rule("S-08")
@pytest.mark.parametrize("signs", [4, 5])
def test_of_many_keys_with_one_id_few_are_tried(signs: int) -> None:
    issuer = LoopbackIssuer()
    others = [jwk(new_key(), "first") for _ in range(signs - 1)]
    data = json.dumps({"keys": [*others, jwk(issuer.keys["first"], "first")]}).encode()
    issuer.key_set = lambda: data  # type: ignore[method-assign]
    found = verifier(issuer).verify(issuer.sign("ada"), time.time())
    assert isinstance(found, Grant) == (signs == 4)


@pytest.mark.rule("S-13")
@pytest.mark.parametrize("claims", [{"sub": 7}, {"sub": None}, {"sub": "a b"}])
def test_a_signed_token_with_a_wrong_subject_is_no_guess(claims: dict[str, Any]) -> None:
    issuer = LoopbackIssuer()
    stated = {"aud": "mcpp", "exp": time.time() + 60, **claims}
    key = issuer.keys["first"]
    token = jwt.api_jws.encode(
        json.dumps(stated).encode(), key, algorithm="EdDSA", headers={"kid": "first"}
    )
    found = verifier(issuer).verify(token, time.time())
    assert found == BadToken("the claim 'sub' is not a participant id")


@pytest.mark.rule("S-02")
@given(st.floats(0, 1, exclude_max=True), st.sampled_from("AZaz09-_."))
def test_a_changed_token_is_refused_and_nothing_escapes(share: float, letter: str) -> None:
    token = _TOKEN
    place = int(share * len(token))
    changed = token[:place] + letter + token[place + 1 :]
    found = _VERIFIER.verify(changed, time.time())
    if changed != token and not isinstance(found, BadToken | Unverifiable):
        # The last character of a part has bits that mean nothing.
        assert place == len(token) - 1
        assert jwt.decode(changed, options={"verify_signature": False})["sub"] == "ada"


@given(st.text('abcAZ09._-~{}"', max_size=200))
def test_texts_that_are_no_tokens_are_refused(text: str) -> None:
    assert _VERIFIER.verify(text, time.time()) == BadToken()


_SHARED = LoopbackIssuer()
_VERIFIER = verifier(_SHARED)
_TOKEN = _SHARED.sign("ada")


def test_deeply_nested_claims_are_refused_without_harm() -> None:
    token = f"{part({'alg': 'EdDSA', 'kid': 'first'})}.{'W' * 7000}.AA"
    nested = urlsafe_b64encode(b"[" * 5000 + b"]" * 5000).decode().rstrip("=")
    for claims in (token, f"{part({'alg': 'EdDSA', 'kid': 'first'})}.{nested}.AA"):
        assert verifier(_SHARED).verify(claims, time.time()) == BadToken()


# --- key sets -------------------------------------------------------------------------------------


@pytest.mark.rule("S-02")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "first"}]}',
        b'{"keys": [1, null, {"kty": "RSA"}]}',
        b"[" * 100_000,
    ],
)
def test_a_set_without_a_usable_key_is_refused(data: bytes) -> None:
    with pytest.raises(KeySetError):
        read_key_set(data)


@pytest.mark.rule("S-02")
def test_keys_for_other_uses_algorithms_and_lengths_are_skipped() -> None:
    key = new_key()
    items = [
        jwk(key, "encrypts") | {"use": "enc"},
        jwk(key, "lies") | {"alg": "RS256"},
        jwk(key, "good"),
    ]
    found = read_key_set(json.dumps({"keys": items}).encode())
    assert [each.id for each in found] == ["good"]


@pytest.mark.rule("S-02")
def test_an_rsa_key_that_takes_long_to_verify_with_is_skipped() -> None:
    good, slow = (jwk(new_key("RS256"), id, "RS256") for id in ("good", "slow"))
    slow["e"] = slow["n"][4:-2] + "_w"  # odd, and of nearly as many bits
    found = read_key_set(json.dumps({"keys": [slow, good]}).encode())
    assert [each.id for each in found] == ["good"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_public_key_is_read_from_pem(algorithm: str) -> None:
    key = new_key(algorithm).public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (found,) = read_public_key(pem)
    assert (found.id, found.algorithm) == (None, algorithm)
    with pytest.raises(KeySetError):
        read_public_key(b"-----BEGIN NOTHING-----")


# --- the cache ------------------------------------------------------------------------------------


class SetClock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def _settled(cache: KeyCache) -> None:
    async with asyncio.timeout(10):
        await cache.refresh()


@pytest.mark.rule("S-08")
def test_keys_are_good_for_a_day_while_the_key_server_is_down() -> None:
    issuer, clock = LoopbackIssuer(), SetClock()
    is_down = False

    def read() -> tuple[VerifyingKey, ...]:
        if is_down:
            raise KeySetError("down")
        return read_key_set(issuer.key_set())

    async def check() -> None:
        nonlocal is_down
        cache = KeyCache("company", read, asyncio.get_running_loop(), clock)
        await _settled(cache)
        is_down = True
        clock.now += KEEP_SECONDS - 1
        await _settled(cache)
        assert cache.find("first", "EdDSA")
        clock.now += 2
        await _settled(cache)
        assert not cache.find("first", "EdDSA")
        assert cache.is_stale
        is_down = False
        await _settled(cache)
        assert cache.find("first", "EdDSA")

    asyncio.run(check())


@pytest.mark.rule("S-14")
@pytest.mark.parametrize("is_reading", [False, True])
def test_a_reload_always_leads_to_keys_that_were_read_after_it(is_reading: bool) -> None:
    issuer, clock = LoopbackIssuer(), SetClock()
    may_go_on = threading.Event()

    def read() -> tuple[VerifyingKey, ...]:
        keys = read_key_set(issuer.key_set())
        may_go_on.wait(10)
        return keys

    async def check() -> None:
        cache = KeyCache("company", read, asyncio.get_running_loop(), clock)
        if is_reading:
            cache.refresh()
        else:
            may_go_on.set()
            cache.load()
        (stolen,) = read_key_set(issuer.key_set())
        clock.now += 1.0
        first = cache.refreshing
        cache.refresh_soon()
        assert cache.refreshing is first  # not yet
        if first is not None:
            may_go_on.set()
            await first
        issuer.keys["second"] = new_key()
        del issuer.keys["first"]
        clock.now += REFRESH_SECONDS
        cache.renew()
        assert cache.refreshing is not None
        await cache.refreshing
        assert cache.has_withdrawn(stolen.fingerprint)
        clock.now += REFRESH_SECONDS
        cache.renew()
        assert cache.refreshing is None  # once is enough

    asyncio.run(check())


@pytest.mark.rule("S-08")
def test_invented_key_ids_reach_the_key_server_at_most_once_in_five_seconds() -> None:
    issuer, clock = LoopbackIssuer(), SetClock()
    reads = 0

    def read() -> tuple[VerifyingKey, ...]:
        nonlocal reads
        reads += 1
        return read_key_set(issuer.key_set())

    async def check() -> None:
        cache = KeyCache("company", read, asyncio.get_running_loop(), clock)
        cache.load()
        known = Issuers([Issuer(None, "mcpp", cache, rights("company"))], ["demo"])
        issuer.current = "invented"
        issuer.keys["invented"] = new_key()
        token = issuer.sign("ada")
        del issuer.keys["invented"]
        for _ in range(100):
            clock.now += REFRESH_SECONDS / 10
            found = known.verify(token, time.time())
            assert isinstance(found, Unverifiable)
            if found.refresh is not None:
                await found.refresh
        assert reads <= 12

    asyncio.run(check())


@pytest.mark.rule("S-08")
@pytest.mark.parametrize(
    "start",
    [
        b"H",
        b"HTTP/1.1 200 OK\r\nX: ",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5;",
    ],
)
def test_a_key_server_that_sends_a_byte_at_a_time_is_cut_off(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MAX_SECONDS", 0.5)
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(start)
            for _ in range(500):
                if not ended.wait(0.02):
                    connection.sendall(b"a")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        began = time.monotonic()
        try:
            with pytest.raises(KeySetError):
                fetching.fetch(f"http://127.0.0.1:{listener.getsockname()[1]}/")
            assert time.monotonic() - began < 5
        finally:
            ended.set()
            thread.join()


@pytest.mark.rule("S-08")
@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: 1\r\n"),
    ],
    ids=["interim answers", "trailers"],
)
def test_whatever_a_key_server_sends_is_bounded(start: bytes, repeated: bytes) -> None:
    sent = 0

    def flood(listener: socket.socket) -> None:
        nonlocal sent
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(start)
            while sent < 64 * fetching.MAX_BYTES:
                connection.sendall(repeated * 1_000)
                sent += len(repeated) * 1_000

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=flood, args=(listener,))
        thread.start()
        with pytest.raises(KeySetError, match="sent more than 524288 bytes"):
            fetching.fetch(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        thread.join()


@pytest.mark.rule("S-08")
@pytest.mark.parametrize("host", ["exa mple.org", "exa\tmple.org", "a" * 64 + ".org", ".org", "["])
def test_an_address_that_no_server_can_have_is_an_error_of_the_key_server(host: str) -> None:
    with pytest.raises(KeySetError):
        fetching.fetch(f"https://{host}/keys")


@pytest.mark.rule("S-08")
def test_a_mistake_while_reading_keys_holds_up_no_request() -> None:
    def read() -> tuple[VerifyingKey, ...]:
        raise RuntimeError("unexpected")

    async def check() -> None:
        async with asyncio.timeout(10):
            cache = KeyCache("company", read, asyncio.get_running_loop(), time.time)
            assert await cache.refresh() is False
            assert cache.refreshing is None

    asyncio.run(check())


@pytest.mark.rule("S-08")
@pytest.mark.parametrize(
    "url",
    [
        "https://exa mple.org/keys",
        "https://example.org/the keys",
        "https://ex\u00e4mple.org",
        "http://example.org/keys",
        "https://",
        "example.org/keys",
    ],
)
def test_an_address_of_keys_that_cannot_work_fails_the_check(url: str) -> None:
    text = f'[issuers.company]\njwks_url = "{url}"\naudience = "mcpp"\n'
    with pytest.raises(ConfigError, match=r"issuers\.company\.jwks_url: must be an https address"):
        config.parse(text, {})
