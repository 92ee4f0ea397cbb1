"""Secrets that betray themselves by their form are taken out before anything is stored."""

import re
from typing import Any, Final

WITHHELD: Final = "[secret withheld]"

# Each pattern is linear: no nested repetition, bounded gaps. Where there is a group, only the
# group is secret and what introduces it may stay.
_IS: Final = r"[\"']?\s{0,4}[:=]\s{0,4}[\"']?"
_PASSWORD: Final = r"(?:password|passwd|passphrase|_pass|_pwd)"
_PATTERNS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        (
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r"[\s\S]*?(?:-----END [A-Z ]{0,40}-----|\Z)"
        ),
        r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
        # AWS's secret keys have no mark but their length; a commit's hash has no capitals.
        r"(?<![\w/+=.-])(?=(?:[a-z0-9/+]*[A-Z]){4})(?=(?:[A-Za-z/+]*\d){2})[A-Za-z0-9/+]{40}(?![\w/+=.-])",
        r"\bgh[pousr]_[A-Za-z0-9]{20,255}",
        r"\bgithub_pat_[A-Za-z0-9_]{20,255}",
        r"\bglpat-[A-Za-z0-9_-]{16,64}",
        r"\bsk-[A-Za-z0-9_-]{16,255}",
        r"\b(?:[sr]k_(?:live|test)|whsec)_[A-Za-z0-9]{10,255}",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,255}",
        r"\bhooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9/_-]{8,256})",
        r"\bAIza[0-9A-Za-z_-]{30,64}",
        r"\bya29\.[A-Za-z0-9_-]{16,2048}",
        r"\bSG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,128}",
        r"\b(?:npm|pypi|hf|dop_v1|shpat|dckr_pat)[_-][A-Za-z0-9_-]{24,255}",
        r"\beyJ[A-Za-z0-9_-]{6,2048}\.[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,1024}",
        r"\bAGE-SECRET-KEY-1[0-9A-Z]{40,80}",
        r"\b\d{8,10}:AA[A-Za-z0-9_-]{32,40}",  # a bot's at Telegram
        r"\bmcpp\.bearer\.([A-Za-z0-9._~-]{8,2048})",
        r"(?i)[?&](?:sig|signature|x-amz-signature|access_token)=([^\s&\"']{8,1024})",
        r"(?i)\b(?:bearer|basic)\s+([A-Za-z0-9._~+/-]{16,2048}=*)",
        rf"(?i)\bauthorization{_IS}(?:[a-z]{{1,20}}\s{{1,4}})?([^\s\"',;]{{8,2048}})",
        r"[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{0,128}:([^\s/@]{1,256})@",
        # In quotes it may hold anything else.
        rf'(?i){_PASSWORD}[\"\']?\s{{0,4}}[:=]\s{{0,4}}"([^"\n]{{4,256}})"',
        rf"(?i){_PASSWORD}[\"\']?\s{{0,4}}[:=]\s{{0,4}}'([^'\n]{{4,256}})'",
        rf"(?i){_PASSWORD}{_IS}([^\s\"',;]{{4,256}})",
        # As people say it, but not "the password is required".
        (
            r"(?i)\bpass(?:word|phrase)\s{1,4}(?:is|was)\s{1,4}[\"']?"
            r"((?=[^\s,;]{0,99}[\d!@#$%^&*])[^\s\"',;]{4,256})"
        ),
        r"(?i)\b(?:pass|pwd)=[\"']?([^\s\"',;]{4,256})",
        (
            r"(?i)(?:secret[ _-]?(?:access[ _-]?)?|account[ _-]?|access[ _-]?)key"
            rf"{_IS}([^\s\"',;]{{8,256}})"
        ),
        # A bare "token: rotation" is a phrase; with a digit in it, it is a token.
        rf"(?i)(?:secret|token|api[ _-]?key){_IS}((?=[^\s,;]{{0,99}}\d)[^\s\"',;]{{8,256}})",
    )
)


def redact(text: str) -> str:
    """The text without its secrets; equal to what came in where there are none."""
    for pattern in _PATTERNS:
        text = pattern.sub(_withhold, text)
    return text


def redact_all(value: Any) -> Any:
    """The same for every string in a JSON value, keys included."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(key): redact_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redact_all(item) for item in value)
    return value


def _withhold(match: re.Match[str]) -> str:
    if not match.re.groups:
        return WITHHELD
    start, end = match.span(1)
    if match.string.startswith(WITHHELD, start):
        return match[0]
    whole, offset = match[0], match.start()
    return whole[: start - offset] + WITHHELD + whole[end - offset :]
