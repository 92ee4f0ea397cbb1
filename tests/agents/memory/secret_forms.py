"""A checklist of secrets as they appear in text: for each its form, a text, and the secret in it.

The forms are publicly documented facts (prefixes, lengths, alphabets); the values are random.
"""

import random
import string
from typing import Final, NamedTuple

_random = random.Random(16)
ALNUM: Final = string.ascii_letters + string.digits
LOWER: Final = string.ascii_lowercase + string.digits
UPPER: Final = string.ascii_uppercase + string.digits
HEX: Final = "0123456789abcdef"
URL: Final = ALNUM + "-_"
B64: Final = ALNUM + "+/"


class SecretForm(NamedTuple):
    """A secret, and a text that contains it."""

    name: str
    text: str
    secret: str


def _r(length: int, alphabet: str = ALNUM) -> str:
    """Return a random text that has a digit, and a capital where the alphabet has them."""
    while True:
        text = "".join(_random.choices(alphabet, k=length))
        if any(map(str.isdigit, text)) and (alphabet in (LOWER, HEX) or text.lower() != text):
            return text


def _uuid() -> str:
    digits = _r(32, HEX)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _bare() -> list[SecretForm]:
    """Return secrets that their own form gives away, wherever they stand."""
    values = {
        "mcpp token": _r(43, URL),
        "mcpp session": f"session~{_r(12, URL)}.{_r(60, URL)}",
        "aws access key id": "AKIA" + _r(16, UPPER),
        "aws temporary key id": "ASIA" + _r(16, UPPER),
        "aws secret key": _r(40, B64),
        "aws bedrock key": "ABSK" + _r(110, B64),
        "github personal": "ghp_" + _r(36),
        "github oauth": "gho_" + _r(36),
        "github app": "ghs_" + _r(36),
        "github refresh": "ghr_" + _r(36),
        "github fine-grained": "github_pat_" + _r(22) + "_" + _r(59),
        "gitlab personal": "glpat-" + _r(20, URL),
        "gitlab pipeline trigger": "glptt-" + _r(40, HEX),
        "gitlab runner": "glrt-" + _r(20, URL),
        "gitlab deploy": "gldt-" + _r(20, URL),
        "gitlab job": "glcbt-1a_" + _r(20, URL),
        "openai": "sk-" + _r(20) + "T3Blbk" + "FJ" + _r(20),
        "openai project": "sk-proj-" + _r(74, URL) + "T3Blbk" + "FJ" + _r(74, URL),
        "anthropic": "sk-ant-api03-" + _r(93, URL) + "AA",
        "openrouter": "sk-or-v1-" + _r(64, HEX),
        "hugging face": "hf_" + _r(34, string.ascii_letters + "0123456789"),
        "groq": "gsk_" + _r(52),
        "xai": "xai-" + _r(80),
        "perplexity": "pplx-" + _r(48),
        "replicate": "r8_" + _r(37),
        "google api": "AIza" + _r(35, URL),
        "google oauth": "ya29." + _r(68, URL),
        "google client secret": "GOCSPX-" + _r(28, URL),
        "slack bot": f"xoxb-{_r(11, '123456789A')}-{_r(12, '123456789A')}-{_r(24)}",
        "slack user": f"xoxp-{_r(11, '123456789A')}-{_r(12, '123456789A')}-{_r(32, HEX)}",
        "slack app": f"xapp-1-A{_r(10, UPPER)}-{_r(13, '123456789A')}-{_r(64, HEX)}",
        "slack config": f"xoxe.xoxp-1-{_r(160)}",
        "stripe live": "sk_live_" + _r(24),
        "stripe restricted": "rk_live_" + _r(24),
        "stripe webhook": "whsec_" + _r(32),
        "sendgrid": f"SG.{_r(22, URL)}.{_r(43, URL)}",
        "mailgun": "key-" + _r(32, HEX),
        "mailchimp": _r(32, HEX) + "-us14",
        "brevo": f"xkeysib-{_r(64, HEX)}-{_r(16)}",
        "twilio key": "SK" + _r(32, HEX),
        "telegram bot": f"{_r(9, '1234567890A').replace('A', '1')}:AA{_r(33, URL)}",
        "discord bot": f"MT{_r(24)}.{_r(6)}.{_r(38, URL)}",
        "discord webhook": "https://discord.com/api/webhooks/1133557799221100/" + _r(68, URL),
        "notion": "ntn_" + _r(46),
        "notion integration": "secret_" + _r(43),
        "supabase personal": "sbp_" + _r(40, HEX),
        "supabase secret": "sb_secret_" + _r(31, URL),
        "tailscale auth": f"tskey-auth-{_r(12)}CNTRL-{_r(32)}",
        "tailscale api": f"tskey-api-{_r(12)}CNTRL-{_r(32)}",
        "npm": "npm_" + _r(36),
        "pypi": "pypi-AgEIcHlwaS5vcmc" + _r(80, URL),
        "rubygems": "rubygems_" + _r(48, HEX),
        "docker hub": "dckr_pat_" + _r(27, URL),
        "docker organization": "dckr_oat_" + _r(32, URL),
        "crates.io": "cio" + _r(32),
        "clojars": "CLOJARS_" + _r(60, LOWER),
        "digitalocean": "dop_v1_" + _r(64, HEX),
        "digitalocean refresh": "dor_v1_" + _r(64, HEX),
        "heroku": "HRKU-AA" + _r(58, URL),
        "vercel blob": f"vercel_blob_rw_{_r(16)}_{_r(30)}",
        "netlify": "nfp_" + _r(36),
        "fly.io": "fo1_" + _r(43, URL),
        "fly.io macaroon": "FlyV1 fm2_" + _r(120, B64),
        "cloudflare origin ca": "v1.0-" + _r(24, HEX) + "-" + _r(146, HEX),
        "databricks": "dapi" + _r(32, HEX),
        "planetscale": "pscale_tkn_" + _r(43, URL),
        "planetscale password": "pscale_pw_" + _r(43, URL),
        "neon": "napi_" + _r(64, LOWER),
        "doppler": "dp.pt." + _r(43),
        "hashicorp vault": "hvs." + _r(95, URL),
        "terraform cloud": f"{_r(14)}.atlasv1.{_r(67)}",
        "pulumi": "pul-" + _r(40, HEX),
        "grafana service": f"glsa_{_r(32)}_{_r(8, HEX)}",
        "grafana cloud": "glc_" + _r(80, B64),
        "sentry user": "sntryu_" + _r(64, HEX),
        "sentry organization": "sntrys_eyJ" + _r(100, B64),
        "new relic user": "NRAK-" + _r(27, UPPER),
        "datadog-like hex after dd": "DD_API_KEY=" + _r(32, HEX),
        "dynatrace": f"dt0c01.{_r(24, UPPER)}.{_r(64, UPPER)}",
        "postman": f"PMAK-{_r(24, HEX)}-{_r(34, HEX)}",
        "linear": "lin_api_" + _r(40),
        "figma": "figd_" + _r(40, URL),
        "airtable": f"pat{_r(14)}.{_r(64, HEX)}",
        "atlassian": "ATATT3" + _r(186, URL),
        "bitbucket app": "ATBB" + _r(32),
        "shopify": "shpat_" + _r(32, HEX),
        "shopify shared": "shpss_" + _r(32, HEX),
        "square": "sq0atp-" + _r(22, URL),
        "square production": "EAAA" + _r(60, URL),
        "paypal braintree": f"access_token$production${_r(16, LOWER)}${_r(32, HEX)}",
        "plaid": f"access-production-{_uuid()}",
        "flutterwave": f"FLWSECK-{_r(32, HEX)}-X",
        "facebook": "EAAB" + _r(100),
        "duffel": "duffel_live_" + _r(43, URL),
        "easypost": "EZAK" + _r(54),
        "readme": "rdme_" + _r(70, LOWER),
        "typeform": "tfp_" + _r(59, URL),
        "hubspot": f"pat-na1-{_uuid()}",
        "1password": "ops_eyJ" + _r(250),
        "age": "AGE-SECRET-KEY-1" + _r(58, UPPER),
        "jwt": f"eyJ{_r(33, URL)}.eyJ{_r(70, URL)}.{_r(43, URL)}",
        "private key": f"-----BEGIN EC PRIVATE KEY-----\n{_r(64, B64)}",
        "azure client secret": f"{_r(3)}8Q~{_r(34, ALNUM)}",
    }
    return [
        SecretForm(name, f"they used {value} there", value[-20:]) for name, value in values.items()
    ]


def _in_context() -> list[SecretForm]:
    """Return secrets that the text around them gives away."""
    secret, word, code = _r(32, URL), "hunter22x", _r(22, URL)
    long, key = _r(86, B64), _r(43, B64)
    texts = {
        "inspector link": (f"open http://127.0.0.1:8787/#{code} in a browser", code),
        "inspector link, tls": (f"https://pods.example.com/#{code}", code),
        "subprotocol": (f"Sec-WebSocket-Protocol: mcpp.v0.1, mcpp.bearer.{secret}", secret),
        "cookie": (f"Cookie: theme=dark; sessionid={secret}", secret),
        "set-cookie": (f"Set-Cookie: sid={secret}; Path=/; HttpOnly", secret),
        "curl cookie": (f"curl -b 'session={secret}' https://x.example", secret),
        "netrc": (f"machine api.example.com login bob password {word}", word),
        "netrc lines": (f"machine git.example.com\n  login bob\n  password {word}\n", word),
        "pgpass": (f"db.example.com:5432:app:bob:{word}", word),
        "npmrc": (f"//registry.example.com/:_authToken={secret}", secret),
        "docker config": (f'{{"auths": {{"r.example": {{"auth": "{_B64}"}}}}}}', _B64),
        "x-api-key": (f"x-api-key: {secret}", secret),
        "private-token": (f"PRIVATE-TOKEN: {secret}", secret),
        "url user": (f"https://bob:{word}@git.example.com/a.git", word),
        "url token": (f"https://api.example.com/v1?api_key={secret}&x=1", secret),
        "url token name": (f"https://api.example.com/v1?token={secret}", secret),
        "basic": (f"Authorization: Basic {_B64}==", _B64),
        "azure storage": (f"AccountName=a;AccountKey={long}==;EndpointSuffix=x", long),
        "environment": (f"export STRIPE_SECRET={secret}", secret),
        "json": (f'"clientSecret": "{secret}"', secret),
        "wireguard": (f"PrivateKey = {key}=", key),
    }
    return [SecretForm(name, *pair) for name, pair in texts.items()]


_B64: Final = "Ym9iOmh1bnRlcjIyeHl6" + "QWxhZGRpbg"
FORMS: Final = [*_bare(), *_in_context()]
