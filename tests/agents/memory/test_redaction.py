"""Redaction against two checklists of about 120 publicly known forms of secrets each (M-08)."""

import time

import pytest

from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.redaction import WITHHELD, redact
from tests.agents.memory import scanner_forms, secret_forms
from tests.agents.memory.secret_forms import SecretForm

FORMS = [*secret_forms.FORMS, *scanner_forms.FORMS]


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
        "see API-REFERENCE-OF-THE-GATEWAY and A3-paper",
        "re_sub_group_replace_all_matches_in_text",
        "live_reload_of_the_development_server_2",
        "s.replace_all_the_things_now and s.ConnectionResetErrorName",
        "b_tree_of_all_participants_by_name_and_time_v2",
        "00000000000000000000000000000000000000000000",
        "X-Auth-Token is a header",
    ],
)
def test_ordinary_text_that_resembles_a_form_is_unchanged(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "piece",
    ["a1B", "cookie: a=", "secret_", "machine a login b ", "Ma.b", "aA1_-", "https://", "EAAA",
     "x.atlasv1.", "b_", "b_1a", "00aA", "A3-A1", "AKCp", "s.aA1", "re_aaaaaa_", "pat.",
     "_a_session=", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ", "1Q~", "sid="],
)  # fmt: skip
def test_redaction_takes_linear_time(piece: str) -> None:
    def seconds(length: int) -> float:
        text = (piece * length)[:length]
        began = time.process_time()
        redact(text)
        return time.process_time() - began

    assert min(seconds(40_000) for _ in range(2)) < 0.5


@pytest.mark.rule("M-08")
@pytest.mark.parametrize("name", ["api_key", "apiKey", "client_secret", "token"])
def test_a_member_of_metadata_is_recognised_by_its_name_as_in_text(
    file_store: MemoryStore, name: str
) -> None:
    secret = "a8f3k2j5h6g7d8s9q1w2e3r4"
    stored = file_store.remember(
        "Vault", "zebra", metadata={"vault": [{name: secret}], "id": secret}
    )
    assert stored.secrets_withheld
    [item] = file_store.context("zebra").items
    assert item.metadata["vault"] == [{name: WITHHELD}]
    assert item.metadata["id"] == secret  # a name that says nothing
