"""A second checklist: the forms that public scanners for secrets look for, as people write them.

Most have no form of their own: a setting's name gives them away. The names and lengths are publicly
documented facts; the values are random.
"""

import random
import string
from typing import Final

from tests.agents.memory.secret_forms import SecretForm

_random = random.Random(61)
ALNUM: Final = string.ascii_letters + string.digits
LOWER: Final = string.ascii_lowercase + string.digits
UPPER: Final = string.ascii_uppercase + string.digits
HEX: Final = "0123456789abcdef"
URL: Final = ALNUM + "-_"
DIGITS: Final = string.digits


def _r(length: int, alphabet: str = ALNUM) -> str:
    while True:
        text = "".join(_random.choices(alphabet, k=length))
        if any(map(str.isdigit, text)):
            return text


def _uuid() -> str:
    digits = _r(32, HEX)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _bare() -> list[SecretForm]:
    """Return secrets with a form of their own."""
    values = {
        "1password secret key": "A3-" + "-".join(_r(n, UPPER) for n in (6, 6, 5, 5, 5, 5)),
        "adobe client secret": "p8e-" + _r(32, LOWER),
        "alibaba key id": "LTAI" + _r(20, LOWER),
        "anthropic admin": "sk-ant-admin01-" + _r(93, URL) + "AA",
        "artifactory key": "AKCp" + _r(69),
        "artifactory reference": "cmVmd" + _r(59),
        "authress": f"sc_{_r(10, LOWER)}.{_r(4, LOWER)}.acc-{_r(12, LOWER)}.{_r(80, URL)}",
        "aws key of other kinds": "ABIA" + _r(16, UPPER),
        "aws bedrock short": "bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t" + _r(60),
        "beamer": "b_" + _r(44, LOWER + "_-"),
        "clickhouse cloud": "4b1d" + _r(38),
        "defined networking": f"dnkey-{_r(26, LOWER)}-{_r(52, LOWER)}",
        "dropbox short-lived": "sl." + _r(137, URL),
        "flutterwave test": f"FLWSECK_TEST-{_r(32, HEX)}-X",
        "frame.io": "fio-u-" + _r(64, URL),
        "gitlab runner registration": "GR1348941" + _r(20, URL),
        "gitlab feature flags": "glffct-" + _r(20, URL),
        "gitlab incoming mail": "glimt-" + _r(25, URL),
        "gitlab scim": "glsoat-" + _r(20, URL),
        "gitlab agent": "glagent-" + _r(50, URL),
        "grafana key": "eyJrIjoi" + _r(80),
        "harness": f"pat.{_r(22)}.{_r(24, HEX)}.{_r(20)}",
        "hugging face organization": "api_org_" + _r(34, string.ascii_letters + "0123456789"),
        "infracost": "ico-" + _r(32),
        "intra42": "s-s4t2ud-" + _r(64, HEX),
        "jwt in base64": "ZXlKaGJHY2lPaUpJVXpJMU5pSXNJblI1Y0NJNklrcFhWQ0o5" + _r(120),
        "lob": "live_" + _r(35, HEX),
        "mailgun public": "pubkey-" + _r(32, HEX),
        "mapbox": f"sk.eyJ1{_r(76)}.{_r(22, URL)}",
        "maxmind": f"{_r(6)}_{_r(29)}_mmk",
        "new relic browser": "NRJS-" + _r(19, HEX),
        "new relic insert": "NRII-" + _r(32, URL),
        "octopus deploy": "API-" + _r(26, UPPER),
        "openai service account": "sk-svcacct-" + _r(74, URL) + "T3Blbk" + "FJ" + _r(74, URL),
        "openshift": "sha256~" + _r(43, URL),
        "prefect": "pnu_" + _r(36, LOWER),
        "scalingo": "tk-us-" + _r(48, URL),
        "settlemint": "sm_pat_" + _r(16),
        "shippo": "shippo_live_" + _r(40, HEX),
        "slack legacy": f"xoxo-{_r(12, DIGITS)}-{_r(12, DIGITS)}-{_r(12, DIGITS)}-{_r(32, HEX)}",
        "slack refresh": f"xoxe-1-{_r(146)}",
        "sonar": "squ_" + _r(40, HEX),
        "sonar project": "sqp_" + _r(40, HEX),
        "sourcegraph": f"sgp_{_r(16, HEX)}_{_r(40, HEX)}",
        "stripe organization": "sk_org_" + _r(50),
        "twitter bearer": "A" * 22 + _r(90),
        "vault old": "s." + _r(24),
        "vault batch": "hvb." + _r(140, URL),
        "yandex key": "AQVN" + _r(36, URL),
        "yandex iam": f"t1.{_r(60, URL)}.{_r(86, URL)}",
        "yandex access": "YC" + _r(38, URL),
        "google service account": '"private_key": "-----BEGIN PRIVATE KEY-----\\n' + _r(64),
        "teams webhook": (
            f"https://acme.webhook.office.com/webhookb2/{_uuid()}@{_uuid()}"
            f"/IncomingWebhook/{_r(32, HEX)}/{_uuid()}"
        ),
        "pgp block": "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n" + _r(64),
        "cohere-style trial": "COHERE_API_KEY=" + _r(40),
        "mistral": "MISTRAL_API_KEY=" + _r(32),
        "deepseek": "sk-" + _r(32, HEX),
        "langsmith": f"lsv2_pt_{_r(32, HEX)}_{_r(10, HEX)}",
        "langfuse": f"sk-lf-{_uuid()}",
        "tavily": "tvly-" + _r(32),
        "pinecone": f"pcsk_{_r(6)}_{_r(60)}",
        "resend": f"re_{_r(8)}_{_r(24)}",
        "clerk": "sk_live_" + _r(42),
        "buildkite": "bkua_" + _r(40, HEX),
        "circleci": "CCIPAT_" + _r(22) + "_" + _r(40, HEX),
        "contentful": "CFPAT-" + _r(43, URL),
        "nuget": "oy2" + _r(43, LOWER),
        "honeycomb": "hcaik_" + _r(58, LOWER),
        "sendbird-like": "SENDBIRD_API_TOKEN: " + _r(40, HEX),
        "weights and biases": "WANDB_API_KEY=" + _r(40, HEX),
    }
    return [
        SecretForm(name, f"they used {value} there", value[-16:]) for name, value in values.items()
    ]


def _named() -> list[SecretForm]:
    """Return secrets that the name of a setting gives away."""
    values = {
        "adafruit": ("ADAFRUIT_IO_KEY={}", _r(32, LOWER)),
        "algolia": ('algolia_api_key: "{}"', _r(32, LOWER)),
        "alibaba secret": ("alibaba_secret = '{}'", _r(30, LOWER)),
        "asana secret": ("asana_client_secret={}", _r(32, LOWER)),
        "atlassian": ("JIRA_API_TOKEN={}", _r(24)),
        "bitbucket": ("bitbucket_client_secret = {}", _r(64, URL)),
        "cisco meraki": ("meraki_api_key: {}", _r(40, HEX)),
        "cloudflare": ("CLOUDFLARE_API_TOKEN={}", _r(40, URL)),
        "cloudflare global": ("cloudflare_api_key = {}", _r(37, HEX)),
        "codecov": ("CODECOV_TOKEN: {}", _uuid()),
        "coinbase": ("coinbase_access_token={}", _r(64, URL)),
        "confluent": ("confluent_secret_key = {}", _r(64)),
        "contentful by name": ("CONTENTFUL_DELIVERY_TOKEN={}", _r(43, URL)),
        "curl header": ('curl -H "X-Auth: {}" https://x.example', _r(32)),
        "curl basic": ("curl -u bob:{} https://x.example", _r(16)),
        "datadog app": ("DD_APP_KEY={}", _r(40, HEX)),
        "drone": ("DRONECI_ACCESS_TOKEN={}", _r(32, LOWER)),
        "dropbox": ("dropbox_api_secret={}", _r(15, LOWER)),
        "etsy": ("ETSY_API_KEY={}", _r(24, LOWER)),
        "facebook app": ("FACEBOOK_APP_SECRET={}", _r(32, HEX)),
        "fastly": ("FASTLY_API_TOKEN={}", _r(32, URL)),
        "gitlab session": ("_gitlab_session={}", _r(32, HEX)),
        "gocardless": ("gocardless_token=live_{}", _r(40, URL)),
        "heroku by name": ("HEROKU_API_KEY={}", _uuid()),
        "heroku in yaml": ("heroku:\n  api_key: {}", _uuid()),
        "hubspot by name": ("hubspot_api_key = '{}'", _uuid()),
        "intercom": ("INTERCOM_ACCESS_TOKEN={}", _r(60)),
        "jfrog": ("JFROG_API_KEY={}", _r(73)),
        "kubernetes": ("kind: Secret\ndata:\n  password: {}", _r(24)),
        "launchdarkly": ("LAUNCHDARKLY_SDK_KEY=sdk-{}", _uuid()),
        "linkedin": ("linkedin_client_secret={}", _r(16)),
        "looker": ("looker_client_secret: {}", _r(24)),
        "mattermost": ("MATTERMOST_ACCESS_TOKEN={}", _r(26, LOWER)),
        "messagebird": ("messagebird_api_token={}", _r(25, LOWER)),
        "netlify by name": ("NETLIFY_AUTH_TOKEN={}", _r(43, URL)),
        "nuget config": ('<add key="ClearTextPassword" value="{}" />', _r(20)),
        "okta by name": ("OKTA_API_TOKEN=00{}", _r(40, URL)),
        "okta header": ("Authorization: SSWS 00{}", _r(40, URL)),
        "okta in prose": ("the Okta token 00{} still works", _r(40, URL)),
        "rapidapi": ("X-RapidAPI-Key: {}", _r(50)),
        "sentry by name": ("SENTRY_AUTH_TOKEN={}", _r(64, HEX)),
        "github app in url": ("https://x-access-token:{}@github.com/a/b.git", f"ghs_{_r(36)}"),
        "sidekiq url": ("https://5e3fd819:{}@gems.contribsys.com/", _r(8, HEX)),
        "sidekiq": ("BUNDLE_ENTERPRISE__CONTRIBSYS__COM={}", f"{_r(8, HEX)}:{_r(8, HEX)}"),
        "snyk": ("SNYK_TOKEN={}", _uuid()),
        "splunk hec": ("Authorization: Splunk {}", _uuid()),
        "squarespace": ("squarespace_token: {}", _uuid()),
        "sumologic": ("SUMOLOGIC_ACCESS_KEY={}", _r(64)),
        "travis": ("TRAVIS_TOKEN={}", _r(22)),
        "twilio auth": ("TWILIO_AUTH_TOKEN={}", _r(32, HEX)),
        "twitch": ("twitch_client_secret={}", _r(30, LOWER)),
        "twitter secret": ("twitter_api_secret={}", _r(50)),
        "zendesk": ("zendesk_secret_key: {}", _r(40, LOWER)),
        "terraform password": ('administrator_login_password = "{}"', _r(12)),
        "django": ("SECRET_KEY = 'django-insecure-{}'", _r(50, ALNUM + "!@#$%^&*(-_=+)")),
        "rails": ("secret_key_base: {}", _r(128, HEX)),
        "jdbc": ("jdbc:postgresql://db/app?user=bob&password={}", _r(14)),
        "smtp": ("SMTP_PASS={}", _r(14)),
        "vapid": ("VAPID_PRIVATE_KEY={}", _r(43, URL)),
        "webhook": ("WEBHOOK_SIGNING_SECRET={}", _r(40, HEX)),
        "encryption": ("ENCRYPTION_KEY={}", _r(64, HEX)),
        "ssh in ansible": ("ansible_become_pass: {}", _r(14)),
    }
    return [
        SecretForm(name, text.format(secret), secret) for name, (text, secret) in values.items()
    ]


FORMS: Final = [*_bare(), *_named()]
