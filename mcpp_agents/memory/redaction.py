"""Redaction of secrets before text is stored: recognized by their form or by their name (M-08)."""

import re
from typing import Any, Final

WITHHELD: Final = "[secret withheld]"

# Every pattern runs in linear time: no nested repetition, bounded gaps. If a pattern has groups,
# only the group that matched is secret; the text around it is kept.

# Separators between a name and its value in prose, code, Markdown and JSON inside JSON.
_MARKS: Final = r"[\\\"'`*_]{0,4}"
_BECOMES: Final = rf"{_MARKS}\s{{0,4}}(?:=>|[:=：])[*_]{{0,3}}\s{{0,4}}"
_IS: Final = rf"{_BECOMES}{_MARKS}"
_PASSWORD: Final = (
    r"(?:password|passwd|passphrase|_pass|_pwd"
    r"|passwort|contraseña|mot de passe|密码|密碼|パスワード)"
)
_KEY: Final = r"(?:secret|token|api[ _-]?key)"
_BARE: Final = r"[^\s\"'`,;]"
_ODD: Final = rf"(?={_BARE}{{0,99}}[\d!@#$%^&])"  # ordinary phrases have no such characters
_DIGIT: Final = rf"(?={_BARE}{{0,99}}\d)"
# A value named just "key" may be a word, a path or a number. A secret key has a long run of letters
# and digits, and is not an attribute access or a call.
_LONG: Final = (
    r"(?:[A-Za-z0-9]{1,15}[+/_-]){0,6}(?=[A-Za-z]{0,99}\d)(?=\d{0,99}[A-Za-z])"
    r"[A-Za-z0-9]{16,256}+[A-Za-z0-9+/_-]{0,256}+={0,2}(?!\.?\w|[(\[])"
)
# Words that follow "--password" in prose about the option.
_PROSE: Final = (
    r"(?:and|argument|as|but|can|flag|for|from|has|if|in|instead|is|may|must|on|option|or|"
    r"parameter|should|switch|the|to|was|when|which|will|with)\b"
)

# Random strings differ from names, whose words are separated and rarely contain digits: a random
# string has a long run of letters and digits, or of letters. After a prefix that is not a word, a
# shorter run is enough.
_DRAWN: Final = r"(?=[A-Za-z]{0,255}\d|[A-Za-z]{30})[A-Za-z0-9]{20,255}[A-Za-z0-9_-]{0,255}"
_RANDOM: Final = r"(?=[A-Za-z_-]{0,64}(?:\d|[a-z][A-Z])|[A-Za-z]{16})"
# Names of code have either no capitals, or nothing else, or no digits.
_MIXED: Final = (
    r"(?=[A-Za-z_+/.-]{0,40}\d)(?=[^\sA-Z]{0,40}[A-Z])(?=[^\sa-z]{0,40}[a-z])[A-Za-z0-9_+/-]"
)
_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"

# Secrets recognized by their form; each has at least 15 characters without a space.
_has_long_word: Final = re.compile(r"\S{15}").search
_LONG_FORMS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b",
        # AWS secret keys have no prefix, only a length; a commit hash has no capitals.
        r"(?<![\w/+=.-])(?=(?:[a-z0-9/+]*[A-Z]){4})(?=(?:[A-Za-z/+]*\d){2})[A-Za-z0-9/+]{40}(?![\w/+=.-])",
        r"\bgh[pousr]_[A-Za-z0-9]{20,255}",
        r"\bgithub_pat_[A-Za-z0-9_]{20,255}",
        (
            rf"\b(?:gl(?:pat|ptt|rt|dt|ft|cbt|imt|oas|soat|agent|ffct)-|GR1348941){_RANDOM}"
            r"[A-Za-z0-9_-]{16,64}"
        ),
        r"\bsk-ant-[a-z]{2,9}\d\d-[A-Za-z0-9_-]{16,255}",
        r"\bsk-(?:proj|svcacct|admin)-(?=[a-z0-9_-]{0,99}[A-Z])(?=[A-Za-z_-]{0,99}\d)[A-Za-z0-9_-]{40,255}",
        rf"\bsk-(?:[A-Za-z0-9]{{1,12}}[_-]){{0,4}}{_DRAWN}",
        rf"\b(?:npm|hf|gsk|xai|pplx|r8)[_-]{_DRAWN}",
        rf"\bfigd_{_RANDOM}[A-Za-z0-9_-]{{20,64}}",
        r"\b(?:[sr]k_(?:live|test)|whsec)_[A-Za-z0-9]{10,255}",
        rf"\b(?:xox[abeoprs]|xapp)-{_RANDOM}[A-Za-z0-9-]{{10,255}}",
        r"\bhv[sbr]\.[A-Za-z0-9_-]{20,255}",
        r"\bA(?:TAT|TCT|TBB)T3[A-Za-z0-9_=-]{20,255}",
        r"\bdapi[0-9a-f]{32}\b",
        rf"\bsq0[a-z]{{3}}-{_RANDOM}[A-Za-z0-9_-]{{20,64}}",
        rf"\bGOCSPX-{_RANDOM}[A-Za-z0-9_-]{{20,64}}",
        r"\b(?:lin_api|ntn)_[A-Za-z0-9]{20,64}",
        r"\b(?:key-|SK)[0-9a-f]{32}\b",
        r"\bhooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9/_-]{8,256})",
        r"\bAIza[0-9A-Za-z_-]{30,64}",
        r"\bya29\.[A-Za-z0-9_-]{16,2048}",
        r"\bSG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,128}",
        r"\bpypi-AgE[A-Za-z0-9_-]{24,255}",
        r"\b(?:do[opr]_v1|shp(?:at|ss|ca|pa)|sbp|rubygems|sntryu)_[0-9a-fA-F]{32,64}\b",
        rf"\bdckr_[po]at_{_RANDOM}[A-Za-z0-9_-]{{24,64}}",
        r"\b(?:pul-[0-9a-f]{40}|xkeysib-[0-9a-f]{64}-\w{16}|[0-9a-f]{32}-us\d{1,2})\b",
        r"\bv1\.0-[0-9a-f]{24}-[0-9a-f]{146}\b",  # Cloudflare
        r"\b(?:CLOJARS_[a-z0-9]{60}|rdme_[a-z0-9]{70}|napi_[a-z0-9]{64})\b",
        (
            r"\b(?:nfp|fo1|tfp|glsa|glc|ops|sntrys|duffel_(?:live|test)|pscale_(?:tkn|pw|oauth)"
            rf"|vercel_blob_rw|sb_secret|secret|fm[12]r?)_{_MIXED}{{24,4096}}={{0,2}}"
        ),
        rf"\b(?:EAA[A-Z]|EZ[AT]K|ABSK|ATBB|HRKU-AA|cio){_MIXED}{{28,512}}={{0,2}}",
        r"\bdp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{30,80}",  # Doppler
        r"\btskey-[a-z]{3,12}-[A-Za-z0-9-]{20,80}",
        r"\b(?:NRAK|PMAK|FLWSECK)-(?=[A-Za-z]{0,40}\d)[A-Za-z0-9-]{26,80}",
        r"\bdt0[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}\b",  # Dynatrace
        r"\bpat[A-Za-z0-9]{14}\.[0-9a-f]{64}\b",  # Airtable
        rf"\b(?:pat-[a-z]{{2,3}}\d|access-(?:sandbox|development|production))-{_UUID}",
        r"\baccess_token\$(?:production|sandbox)\$[0-9a-z]{16}\$([0-9a-f]{32})\b",
        r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}",
        r"(?<![\w~.-])[\w~.]{3}\dQ~[\w~.-]{31,34}(?![\w~-])",  # Microsoft Entra
        r"\b[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,42}(?![\w-])",  # Discord bot token
        r"\bdiscord(?:app)?\.com/api/webhooks/\d{10,20}/([\w-]{40,100})",
        r"\bxoxe\.xox[bp]-\d-[A-Za-z0-9]{40,255}",
        # A prefix, then hexadecimal digits.
        (
            r"\b(?:(?:sq[upa]|bkua|shippo_(?:live|test)|sgp(?:_[0-9a-f]{16}|_local)?)_[0-9a-f]{40}"
            r"|(?:live|test)_(?:pub_)?[0-9a-f]{35}|s-s4t2(?:ud|af)-[0-9a-f]{64}|pubkey-[0-9a-f]{32}"
            r"|lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}|CCIPAT_\w{22}_[0-9a-f]{40}|NRJS-[0-9a-f]{19}"
            rf"|FLWSECK_TEST-[0-9a-f]{{32}}|(?:sk-lf|sdk|mob)-{_UUID})"
        ),
        # A prefix, then letters of one case and digits.
        (
            r"\b(?:p8e-[a-z0-9]{32}|pnu_[a-z0-9]{36}|oy2[a-z0-9]{43}|hcaik_[a-z0-9]{58}"
            r"|LTAI(?=[A-Za-z]{0,19}\d)[A-Za-z0-9]{12,20}|API-(?=[A-Z]{0,25}\d)[A-Z0-9]{26}"
            r"|b_(?=(?:[a-z_=-]{0,40}\d){4})[a-z0-9_=-]{44}"
            r"|dnkey-[a-z0-9=_-]{26}-[a-z0-9=_-]{52}|A3(?:-(?=[A-Z]{0,5}\d|[A-Z0-9]{5})[A-Z0-9]{5,11}){5,6})"
            r"(?![\w-])"
        ),
        # A prefix, then letters of both cases and digits.
        (
            r"\b(?:AKCp|cmVmd|4b1d|fio-u-|eyJrIjoi|api_org_|ico-|tk-us-|sm_[aps]at_|sk_org_|AQVN|YC"
            r"|tvly-|pcsk_\w{4,8}_|re_\w{6,10}_|CFPAT-|NRII-|sha256~|sl\.|ZXlK|A{22}"
            rf"|bedrock-api-key-|[ps]at\.[\w-]{{22}}\.[0-9a-f]{{24}}\.){_MIXED}{{16,4096}}={{0,2}}"
        ),
        rf"\bs\.{_MIXED}{{24}}(?![\w.(-])",  # Vault, before its prefixes
        rf"(?<![\w-])00{_MIXED}{{40}}(?![\w-])",  # Okta
        rf"\b[A-Za-z0-9]{{6}}_{_MIXED}{{29}}_mmk\b",  # MaxMind
        r"\bsk\.eyJ[A-Za-z0-9_-]{40,200}\.[A-Za-z0-9_-]{22}(?![\w-])",  # Mapbox
        r"\bt1\.[A-Za-z0-9_-]{40,400}={0,2}\.[A-Za-z0-9_-]{86}={0,2}",  # Yandex
        r"\b(?:sc|ext|scauth|authress)_[a-z0-9]{5,30}\.[a-z0-9]{4,6}\.acc[_-][\w-]{10,32}\.[\w+/=-]{30,120}",
        r"\.webhook\.office\.com/webhookb2/([\w@/-]{60,300})",
        # Our own: a participant's token, a browser's session, a link that signs a browser in.
        (
            r"(?<![\w/+=.~-])(?=(?:[a-z0-9_-]*[A-Z]){4})(?=(?:[A-Z0-9_-]*[a-z]){4})"
            r"(?=(?:[A-Za-z_-]*\d){2})[A-Za-z0-9_-]{43}(?![\w/+=-]|\.\w)"
        ),
        r"\bsession~([A-Za-z0-9_.-]{30,2048})",
        r"\bhttps?://[^\s/?#]{1,255}/#((?=[\w-]{0,21}(?:\d|[a-z][A-Z]))[\w-]{22})(?![\w-])",
        r"\beyJ[A-Za-z0-9_-]{6,2048}\.[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,1024}",
        r"\bAGE-SECRET-KEY-1[0-9A-Z]{40,80}",
        r"\b\d{8,10}:AA[A-Za-z0-9_-]{32,40}",  # Telegram bot token
        r"\bmcpp\.bearer\.([A-Za-z0-9._~-]{8,2048})",
        r"(?i)\b(?:bearer|basic)\s+([A-Za-z0-9._~+/-]{16,2048}=*)",
    )
)
# Secrets recognized by their form that may be shorter.
_FORMS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        (
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r"[\s\S]*?(?:-----END [A-Z ]{0,40}-----|\Z)"
        ),
        r"(?i)[?&](?:sig|signature|x-amz-signature|access_token)=([^\s&\"']{8,1024})",
        rf"(?i)\bauthorization{_IS}(?:[a-z]{{1,20}}\s{{1,4}})?([^\s\"',;]{{8,2048}})",
        # A password in a URL may contain a slash, but a port and a path are not a password.
        r"[a-z][a-z0-9+.-]{1,20}://[^\s/:@\[]{0,128}:(?!\d{1,5}/)([^\s@]{1,256})@",
        (
            r"\b(?:(?:mysql|mariadb)\w{0,10}\b[^\n]{0,120}?\s-p(?![-$<{(])([^\s\"'`]{4,256})"
            r"|redis-cli\b[^\n]{0,120}?\s-a\s{1,4}[\"']?(?![-$<{(])([^\s\"'`]{4,256})"
            r"|sshpass\s{1,4}-p\s{0,4}[\"']?(?![-$<{(])([^\s\"'`]{4,256}))"
        ),
        r"(?i)\b(?:set-)?cookie:\s{0,4}([\w.-]{1,64}=[^\r\n\"'`]{8,4096})",
        r"(?<!\S)(?:-b|--cookie)[ =]?[\"']?[\w.-]{1,64}=([^\s\"';]{8,2048})",
        (
            r"(?i)(?:\b(?:session[_-]?id|sid|phpsessid|jsessionid)|\b_[a-z]{1,30}_session)="
            r"((?=[a-z%._-]{0,64}\d)[a-z0-9%._-]{16,512})"
        ),
        r"\bmachine\s{1,8}\S{1,255}\s{1,8}login\s{1,8}\S{1,128}\s{1,8}password\s{1,8}(\S{1,256})",
        (
            r"(?m)^[\w.*-]{1,255}:(?:\d{4,5}|\*):[A-Za-z_*][\w-]{0,63}:[A-Za-z_*][\w-]{0,63}:"
            r"(\S{4,256})$"  # .pgpass
        ),
        r"(?i)\bx-(?:auth|access|api)(?:-[a-z]{1,20}){0,2}:\s{0,4}([^\s\"',;]{8,2048})",
        r"(?i)\bkey=\"[a-z]{0,20}password\"\s{1,8}value=\"([^\"]{1,256})\"",
        r"CONTRIBSYS__COM\W{1,4}([0-9a-f]{8}:[0-9a-f]{8})\b",
        r"\"auth\"\s{0,4}:\s{0,4}\"([A-Za-z0-9+/]{16,1024}={0,2})\"",
        r"(?<!\S)(?:-u|--user)[ =]?[\"']?[^\s:/\"']{1,64}:(?!\d{1,9}(?:\s|\Z))([^\s\"'`]{4,256})",
    )
)
# Secrets recognized by their name. Text without any of these names skips the patterns below.
_SECRET_NAMES: Final = (
    "pass",
    "pw",
    "contraseña",
    "密码",
    "密碼",
    "パスワード",
    "key",
    "secret",
    "token",
)
_NAMED: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # A quoted value may contain anything else; in quoted JSON the quotes are escaped.
        (
            rf"(?i){_PASSWORD}{_BECOMES}(?:"
            r"\\{1,3}[\"']([^\"'\\\n]{4,256})\\{1,3}[\"']"
            r"|\"((?:[^\"\\\n]|\\.){4,256})\""
            r"|'((?:[^'\\\n]|\\.){4,256})'"
            r"|`([^`\n]{4,256})`)"
        ),
        rf"(?i){_PASSWORD}{_IS}((?:(?!</|\\[\"']){_BARE}){{4,256}})",
        # In a sentence, but not "the password is required".
        (
            r"(?i)\bpass(?:word|phrase)(?:\s{1,4}(?:for|of|on|in|at)(?:\s{1,4}[\w.@/-]{1,40}){1,4}?)?"
            rf"\s{{1,4}}(?:is|was|to)\s{{1,4}}{_MARKS}({_ODD}{_BARE}{{4,256}})"
        ),
        rf"(?i)\bpass(?:word|phrase)\s{{1,4}}`({_ODD}[^`\s=()]{{6,256}})`",
        rf"(?i){_KEY}\s{{1,4}}(?:is|was)\s{{1,4}}{_MARKS}({_DIGIT}{_BARE}{{12,256}})",
        rf"(?i){_KEY}\s{{1,4}}`({_DIGIT}[^`\s]{{12,256}})`",
        (
            rf"(?i:key)(?:{_IS}|\s{{1,4}}(?i:(?:is|was)\s{{1,4}})?{_MARKS}"
            rf"|{_MARKS}\s{{0,20}}\|\s{{0,4}}{_MARKS})({_LONG})"
        ),
        # In a table cell and in an XML element.
        (
            rf"(?i)(?:{_PASSWORD}|\bpwd|{_KEY}){_MARKS}\s{{0,20}}\|\s{{0,4}}{_MARKS}"
            r"(?![\\\"'`*_])((?=[^\s|]{0,99}[\d!@#$%^&])[^\s|`]{4,256})"
        ),
        rf"(?i)<[\w:.-]{{0,30}}(?:{_PASSWORD}|pwd|{_KEY})\b[^<>\n]{{0,80}}>\s{{0,4}}([^<>]{{4,256}})<",
        # On a command line.
        (
            rf"(?i)(?<!\S)--?(?:[a-z]{{1,20}}-){{0,2}}(?:pass|{_PASSWORD}|{_KEY})\s{{1,4}}[\"']?"
            rf"(?!{_PROSE}|[-<$\[{{(])([^\s\"'`]{{4,256}})"
        ),
        r"(?i)\bpass=[\"']?([^\s\"',;]{4,256})",
        # But not "all tests pass: python311".
        (
            rf"(?i)(?<![sy] )\b(?:pass|pw){_IS}((?=[^\s\d]{{0,99}}\d)(?=[^\sa-z]{{0,99}}[a-z])"
            r"[^\s\"'`,;/.()\[\]_]{6,256}+)(?=[\s\"'`,;.]|\Z)"
        ),
        rf"(?i)\bpwd{_IS}(?![/~.])({_BARE}{{4,256}})",  # a path is the working directory
        (
            r"(?i)(?:secret[ _-]?(?:access[ _-]?)?|account[ _-]?|access[ _-]?)key(?:[ _-]?base)?"
            rf"{_IS}(?![\\\"'`*_>])({_BARE}{{8,256}})"
        ),
        # Assigned, but not from an attribute or a call.
        (
            r"(?i)(?:api_?key|(?:client|app)[_-]?secret|(?:access|auth|refresh)[_-]?token)"
            rf"{_MARKS}[=:]\s?{_MARKS}([\w+/=-]{{12,256}})(?![\w+/=.(\[-])"
        ),
        # "token: rotation" is a phrase. A value with a digit is a token, and so is one longer than
        # any word, or a long one that is assigned or ends the line.
        rf"(?i){_KEY}{_IS}((?:{_DIGIT}|(?=[a-z]{{16}})){_BARE}{{8,256}})",
        rf"(?i)(?:secret|token){_MARKS}\s{{0,4}}=\s{{0,4}}{_MARKS}([a-z]{{10,256}}+)(?![\w.(\[-])",
        rf"(?im)secret{_IS}([a-z]{{12,256}}+)(?=[\"'`.,;}}]{{0,3}}\s{{0,4}}$)",
    )
)

_PASSWORD_NAME: Final = re.compile(rf"(?i)(?:{_PASSWORD}|\bpwd)\Z")


def redact(text: str) -> str:
    """Return the text with its secrets replaced; a text without secrets is returned unchanged."""
    for pattern in (*_LONG_FORMS, *_FORMS) if _has_long_word(text) else _FORMS:
        text = pattern.sub(_withhold, text)
    folded = text.casefold()
    if any(name in folded for name in _SECRET_NAMES):
        for pattern in _NAMED:
            text = pattern.sub(_withhold, text)
    return text


def is_password_name(name: str) -> bool:
    """Return whether a member of this name is a password, so that all of its value is secret."""
    return _PASSWORD_NAME.search(name) is not None


def redact_all(value: Any) -> Any:
    """Redact every string in a JSON value, including keys."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(name): _redact_member(name, member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redact_all(item) for item in value)
    return value


def _redact_member(name: str, value: Any) -> Any:
    """Redact a member of a JSON object: some secrets are recognized by its name."""
    redacted = redact_all(value)
    if not isinstance(redacted, str):
        return redacted
    head = f"{name}: "
    line = redact(head + redacted)
    return line[len(head) :] if line.startswith(head) else redacted


def _withhold(match: re.Match[str]) -> str:
    if not match.re.groups:
        return WITHHELD
    start, end = match.span(match.lastindex or 0)
    if match.string.startswith(WITHHELD, start):
        return match[0]
    matched, offset = match[0], match.start()
    return matched[: start - offset] + WITHHELD + matched[end - offset :]
