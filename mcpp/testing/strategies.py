"""Hypothesis strategies for envelopes, contexts, and invalid bytes that resemble them.

from hypothesis import given
from mcpp.testing import strategies as mcpp_st

@given(mcpp_st.envelopes(kinds=st.just("chat")))
def test_my_agent_survives(envelope): ...
"""

import re
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcpp.client.factory import new_context, new_envelope
from mcpp.kinds import Kind
from mcpp.protocol.codec import encode
from mcpp.protocol.envelope import (
    CONTEXT_MEMBERS,
    ENVELOPE_MEMBERS,
    ID_PATTERN,
    MAX_DEPTH,
    MAX_KIND_LENGTH,
    MAX_METADATA_BYTES,
    MAX_NUMBER_LENGTH,
    MAX_SIZE,
    NAME_PATTERN,
    PARTICIPANT_PATTERN,
    POD_PATTERN,
    Attachment,
    Context,
    Envelope,
    with_extra,
)

try:
    from hypothesis import strategies as st
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "mcpp.testing.strategies needs Hypothesis: pip install 'mcpp-pods[testing]'"
    ) from None

__all__ = [
    "attachments",
    "contexts",
    "envelopes",
    "hostile_json",
    "ids",
    "json_values",
    "kinds",
    "mangled_envelopes",
    "participants",
    "references",
    "texts",
    "timestamps",
]

_KNOWN_KINDS: Final = (
    "chat",
    "reflection",
    "conclusion",
    "mcp/request:tools/call:read_file",
    "mcp/response:tools/call:read_file",
    "mcp/notification:notifications/progress",
    "mcp/proposal:tools/call:write_file",
)


def ids() -> st.SearchStrategy[str]:
    """Return ids of envelopes and contexts."""
    return _names(ID_PATTERN)


def references() -> st.SearchStrategy[str]:
    """Return references to envelopes and contexts of other pods."""
    return st.tuples(_names(POD_PATTERN), ids()).map("mcpp://%s/%s".__mod__)


def participants() -> st.SearchStrategy[str]:
    """Return participant names."""
    return _names(PARTICIPANT_PATTERN)


def kinds() -> st.SearchStrategy[str]:
    """Return kinds that the protocol defines, and others that it allows."""
    plain = _names(f"[!-$&-~]{{1,{MAX_KIND_LENGTH}}}")
    named = st.text(min_size=1, max_size=20).map(
        lambda name: str(Kind("mcp/request", "tools/call", name))
    )
    return st.sampled_from(_KNOWN_KINDS) | plain | named


def timestamps() -> st.SearchStrategy[str]:
    """Return timestamps of envelopes, with and without fractions, in any zone."""
    fractions = st.sampled_from(("", ".5", ".000", ".123456", ".123456789"))
    zones = st.sampled_from(("Z", "+00:00", "-00:00", "+05:45", "-23:59"))
    seconds = st.datetimes().map(lambda time: time.replace(microsecond=0).isoformat())
    return st.builds(lambda *parts: "".join(parts), seconds, fractions, zones)


def json_values(*, max_leaves: int = 8) -> st.SearchStrategy[Any]:
    """Return any JSON value: a payload, or a member that the protocol does not define."""
    scalars = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | texts()
    )
    return st.recursive(
        scalars,
        lambda values: st.lists(values, max_size=4) | st.dictionaries(texts(), values, max_size=4),
        max_leaves=max_leaves,
    )


def texts() -> st.SearchStrategy[str]:
    """Return strings that UTF-8 can encode."""
    return st.text(max_size=20)


def contexts() -> st.SearchStrategy[Context]:
    """Return contexts with or without type, parent, metadata and unknown members."""
    metadata = st.dictionaries(texts(), json_values(max_leaves=4), max_size=3)
    return st.builds(
        _context_with_extra,
        st.builds(
            new_context,
            st.none() | st.just("reasoning") | _all_kinds(),
            id=ids(),
            parent=st.none() | ids() | references(),
            metadata=st.none() | metadata.filter(_fits),
        ),
        _unknown_members(CONTEXT_MEMBERS),
    )


def attachments(*, private: bool = False) -> st.SearchStrategy[Attachment]:
    """Return references to content, as envelopes name it; `private` includes private ones."""
    types = ("image/png", "text/html;profile=mcp-app", "application/vnd.x+json", "a/b; c=d")
    names = st.text(min_size=1, max_size=20).filter(re.compile(NAME_PATTERN).fullmatch)
    return st.builds(
        Attachment,
        st.binary(max_size=8).map(lambda data: sha256(data).hexdigest()),
        st.integers(min_value=0, max_value=MAX_SIZE),
        st.sampled_from(types),
        st.none() | names,
        st.booleans() if private else st.just(False),
    )


def envelopes(
    *,
    kinds: st.SearchStrategy[str] | None = None,
    payloads: st.SearchStrategy[Any] | None = None,
    senders: st.SearchStrategy[str] | None = None,
) -> st.SearchStrategy[Envelope]:
    """Return valid envelopes of every shape; pass strategies to restrict them."""
    return st.one_of(
        *(
            st.builds(
                new_envelope,
                _all_kinds() if kinds is None else kinds,
                json_values() if payloads is None else payloads,
                sender=participants() if senders is None else senders,
                to=st.lists(participants(), max_size=3) if is_addressed else st.none(),
                correlation_id=st.none() | ids() | references(),
                context=st.none() | contexts(),
                # Only an envelope with addressees may have private ones (E-34).
                attachments=st.just(())
                | st.lists(_all_attachments(private=is_addressed), max_size=3),
                id=ids(),
                ts=timestamps(),
                extra=_unknown_members(ENVELOPE_MEMBERS),
            )
            for is_addressed in (False, True)
        )
    )


def hostile_json() -> st.SearchStrategy[bytes]:
    """Return untrusted input: noise, unusual JSON, and damaged envelopes."""
    values = json_values().map(msgspec.json.encode)
    return st.binary(max_size=200) | texts().map(str.encode) | values | mangled_envelopes()


def mangled_envelopes() -> st.SearchStrategy[bytes]:
    """Return encoded envelopes with pieces removed, repeated, or inserted."""
    # Positions are fractions of the text, so that a shrunk envelope is changed at the same place.
    place = st.floats(min_value=0, max_value=1)
    cut_bytes = st.sampled_from((0, 0, 0, 1, 5, 20))
    changes = st.tuples(place, st.booleans(), cut_bytes, st.sampled_from(_INSERTIONS))
    indents = st.sampled_from((0, 0, 2))
    return st.builds(_mangle, envelopes(), indents, st.lists(changes, min_size=1, max_size=3))


def _mangle(
    envelope: Envelope, indent: int, changes: list[tuple[float, bool, int, bytes | None]]
) -> bytes:
    text = encode(envelope, indent=indent)
    for place, between_members, cut_bytes, insertion in changes:
        start = int(place * len(text))
        if between_members:  # the most effective place
            start = max(text.find(b',"', start), text.find(b',"'), 0)
        cut = text[start : start + cut_bytes]
        text = (
            text[:start] + (cut * 2 if insertion is None else insertion) + text[start + len(cut) :]
        )
    return text


_INSERTIONS: Final = (
    None,  # repeat what was removed
    b"",
    b'"from":"mallory",',
    b',"from":"mallory"',
    b',"\\u0066rom":"mallory"',
    b',"context":{"id":"x","id":"y"}',
    b',"context":{"id":"x","metadata":{"x":1e999}}',
    b',"to":null',
    b',"attachments":null',
    b',"attachments":[{"hash":"x","size":1,"media_type":"a/b"}]',
    b',"private":true',
    b',"note":null',
    b'"\\ud800"',
    b"\\u0041",
    b"1e999",
    b"-1E+0400",
    b"1" * (MAX_NUMBER_LENGTH + 1),
    b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
    b'{"":[' * MAX_DEPTH,
    b" ",
    b"\r\n\t",
    b'"',
    b"\\",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xc3\xa9",
    b"null",
    b"[",
    b"}",
    b",",
)

_all_kinds: Final = kinds
_all_attachments: Final = attachments


def _names(pattern: str) -> st.SearchStrategy[str]:
    """Return names that match a pattern such as `[a-z]{1,64}`: short, or as long as possible."""
    alphabet = [char for char in map(chr, range(128)) if re.fullmatch(pattern, char)]
    longest = int(pattern[pattern.rindex(",") + 1 : -1])
    short = st.text(alphabet, min_size=1, max_size=12)
    return short | short.map(lambda name: (name * longest)[:longest])


def _unknown_members(known: frozenset[str]) -> st.SearchStrategy[dict[str, Any]]:
    names = texts().filter(lambda name: name not in known)
    return st.just({}) | st.dictionaries(names, json_values(max_leaves=4), max_size=3)


def _context_with_extra(context: Context, extra: dict[str, Any]) -> Context:
    return with_extra(
        context, {name: Raw(msgspec.json.encode(value)) for name, value in extra.items()}
    )


def _fits(metadata: dict[str, Any]) -> bool:
    return len(msgspec.json.encode(metadata)) <= MAX_METADATA_BYTES
