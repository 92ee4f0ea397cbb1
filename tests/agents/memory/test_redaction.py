"""Redaction against a checklist of about 120 publicly known forms of secrets (M-08)."""

import time

import pytest

from mcpp_agents.memory.redaction import WITHHELD, redact
from tests.agents.memory.secret_forms import FORMS, SecretForm


@pytest.mark.rule("M-08")
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_known_form_is_withheld(form: SecretForm) -> None:
    assert form.secret not in redact(form.text)
    assert WITHHELD in redact(form.text)


@pytest.mark.parametrize(
    "text",
    [
        "Cookie: preferences are stored in the browser",
        "the cookie: see RFC 6265",
        "https://example.com/#installation-and-setup",
        "https://example.com/docs/#Installation-and-Setup",
        "src/main.py:1023:5:E501:line too long",
        "sid=short",
        "the machine login and password prompts",
        "napi_create_external_arraybuffer_with_finalizer_2",
        "secret_store_migration_plan_for_version_2026",
        "secret_santa_list_of_the_platform_team_2026",
        "tskey-auth-…",
        "session~",
        "glc_build_pipeline_for_the_next_release_v2",
        "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
        "d41d8cd98f00b204e9800998ecf8427e",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "SOME_VERY_LONG_CONSTANT_NAME_OF_43_CHARACTER",
        "getTheParticipantsWhoHaveJoinedSinceVersion",
        "Mon.Tuesday.Wednesday",
        "ops_runbook_for_on_call_engineers_2026_q4",
        "EAAccount manager",
    ],
)
def test_ordinary_text_that_resembles_a_form_is_unchanged(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "piece",
    ["a1B", "cookie: a=", "secret_", "machine a login b ", "Ma.b", "aA1_-", "https://", "EAAA",
     "x.atlasv1.", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ", "1Q~", "sid="],
)  # fmt: skip
def test_redaction_takes_linear_time(piece: str) -> None:
    def seconds(length: int) -> float:
        text = (piece * length)[:length]
        began = time.process_time()
        redact(text)
        return time.process_time() - began

    assert min(seconds(40_000) for _ in range(2)) < 0.5
