"""Search by words: free text, scripts without spaces, neighbours; and redaction."""

import math
import time
from contextlib import closing
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp_agents.memory import MemoryDraft, MemoryStore
from mcpp_agents.memory.access import OWNER, view_of
from mcpp_agents.memory.redaction import WITHHELD, redact
from mcpp_agents.memory.search.terms import grams, parse
from mcpp_agents.memory.search.tokenizer import Tokenizer
from mcpp_agents.memory.storage.engine import Matches
from mcpp_agents.memory.storage.fts_table import FtsTable, length_of
from mcpp_agents.memory.storage.schema import connect
from mcpp_agents.memory.storage.view_masks import ViewMasks
from mcpp_agents.memory.storage.word_index import RowBudget, WordIndex


def names(store: MemoryStore, goal: str) -> list[str]:
    return [item.name for item in store.context(goal).items]


@pytest.mark.parametrize(
    "goal",
    [
        "refresh-token",
        'say "refresh token"',
        "token*",
        "title:token",
        "NOT token OR (AND NEAR",
        "token; DROP TABLE memory",
        "^token + 'x'",
        "tokens",
    ],
)
@pytest.mark.rule("M-27")
def test_nothing_in_a_goal_is_query_syntax(store: MemoryStore, goal: str) -> None:
    store.remember("Found", "the refresh token", "note")
    assert names(store, goal) == ["Found"]


@pytest.mark.parametrize(
    ("content", "goal"),
    [
        ("认证服务使用令牌轮换", "令牌"),
        ("认证服务使用令牌轮换", "服务 轮换"),
        ("猫が好きです", "猫"),
        ("トークンの更新手順", "トークン更新"),
        ("인증서비스를 고친다", "서비스"),
        ("ระบบยืนยันตัวตน", "ยืนยัน"),
        ("用户auth服务", "auth"),
        ("Ｆｕｌｌ　ｗｉｄｔｈ令牌", "full"),
        ("Überprüfung der Schlüssel", "uberprufung"),
        ("Проверка токена", "токена"),
    ],
)
@pytest.mark.rule("M-27")
def test_every_script_is_findable(store: MemoryStore, content: str, goal: str) -> None:
    store.remember("Found", content, "note")
    store.remember("Other", "something else 天気", "note")
    assert names(store, goal) == ["Found"]


@pytest.mark.rule("M-25")
def test_a_reason_shows_a_match_in_an_unspaced_script_in_one_piece(store: MemoryStore) -> None:
    store.remember("T", "リフレッシュトークンを回転させる auth", "note")
    [item] = store.context("リフレッシュトークンの回転 auth").items
    assert item.reason == "matches 'リフレッシュトークン', '回転', 'auth', new"


def test_pairs_of_words_outweigh_the_separate_words(store: MemoryStore) -> None:
    store.remember("Apart", "a layer at the boundary of it", "note")
    store.remember("Together", "at it the boundary layer of a", "note")
    assert names(store, "boundary layer") == ["Together", "Apart"]


def test_a_goal_of_stop_words_only_is_searched(store: MemoryStore) -> None:
    store.remember("Hamlet", "to be or not to be", "note")
    assert names(store, "to be") == ["Hamlet"]


def test_keys_and_tags_find_an_item(store: MemoryStore) -> None:
    store.remember("Login", "people sign in", "note", retrieval_keys=["oauth"], tags=["sso"])
    assert names(store, "oauth") == names(store, "sso") == ["Login"]


@pytest.mark.rule("M-28")
def test_a_turn_is_found_by_its_neighbours_words_but_ranked_lower(store: MemoryStore) -> None:
    said = [
        "Hello.",
        "Hm.",
        "Shall we paint the fence?",
        "Yes, on Friday.",
        "Good.",
        "Fine.",
        "Bye.",
    ]
    for number, text in enumerate(said):
        store.remember("Turn", text, "message", source=f"D1:{number}")
    found = store.context("fence").items
    assert found[0].content == said[2]
    assert {item.content for item in found[1:]} == {said[1], *said[3:6]}
    for item in found[1:]:
        assert "next to something that matches 'fence'" in item.reason


@pytest.mark.rule("M-28")
def test_the_turns_near_a_turn_follow_what_is_stored_and_removed(store: MemoryStore) -> None:
    """However the turns came to be those that are left, the same ones are found."""

    def turns(project: str) -> list[MemoryDraft]:
        return [
            MemoryDraft(title="Turn", content=text, kind="message", source="talk", project=project)
            for text in ["apple pie", "pear pie", "plum", "cherry pie", "fig pie", "lime", "grape"]
        ]

    ids = [store.remember_many([draft])[0].id for draft in turns("changed")[:3]]
    ids += [answer.id for answer in store.remember_many(turns("changed")[3:])]
    store.forget(ids[1])
    store.remember("Fig", "none", "note", project="changed", related_to=[f"supersedes:{ids[4]}"])
    left = [draft for place, draft in enumerate(turns("left")) if place not in (1, 4)]
    store.remember_many(left)
    store.remember("Fig", "none", "note", project="left")
    for goal in ("apple", "pear", "cherry", "fig", "grape", "pie"):
        changed, same = (
            [(item.content, item.score) for item in store.context(goal, project=project).items]
            for project in ("changed", "left")
        )
        assert changed == same
    found = store.context("apple", project="left").items
    assert {item.content for item in found} == {"apple pie", "plum", "cherry pie", "lime"}


@pytest.mark.rule("M-25")
def test_words_of_neighbours_are_named_in_the_order_of_the_goal(store: MemoryStore) -> None:
    store.remember("Ann", "Does the gate of the fence squeak?", "message", source="D1:1")
    store.remember("Bob", "yes", "message", source="D1:2")
    store.remember("Cid", "A fence, a gate and a fence", "note")
    store.remember("Dan", "A fence", "note")
    reasons = {
        goal: {item.name: item.reason for item in store.context(goal).items}["Bob"]
        for goal in ("fence squeak gate", "gate squeak fence")
    }
    assert (
        "next to something that matches 'fence', 'squeak', 'gate'" in reasons["fence squeak gate"]
    )
    assert (
        "next to something that matches 'gate', 'squeak', 'fence'" in reasons["gate squeak fence"]
    )


@pytest.mark.rule("M-25")
def test_a_pair_counts_only_in_its_own_item(store: MemoryStore) -> None:
    for number in range(9):
        store.remember("Filler", f"other {number}", "note")
    apart = "Bob: a token of love; later a refresh of paint"
    store.remember("Alone", apart, "message", source="D2:1")
    store.remember("One", "Ann: the refresh token expired", "message", source="D1:1")
    store.remember("Two", apart, "message", source="D1:2")
    found = {item.name: item for item in store.context("refresh token").items}
    assert "'refresh token'" in found["One"].reason
    assert "matches 'refresh', 'token'" in found["Two"].reason
    assert found["Two"].score < found["One"].score * 0.95


@pytest.mark.rule("M-28")
def test_a_text_that_begins_with_a_speaker_is_a_turn_of_any_kind(store: MemoryStore) -> None:
    store.remember("One", "Ann: Shall we paint the fence?", "note", source="D1:1")
    store.remember("Two", "Dr. Bob: Yes, on Friday.", "fact", source="D1:2")
    store.remember("Other", "Ann: Good.", "note", source="D2:1")
    assert names(store, "fence") == ["One", "Two"]


@pytest.mark.rule("M-28")
def test_contexts_whose_names_differ_by_a_number_are_not_neighbours(store: MemoryStore) -> None:
    for number, said in enumerate(["ann: Paint the fence.", "bob: Boil the egg."]):
        source = f"https://demo/review-{number}#e{number}"
        store.remember("Talk", said, "session", source=source)
    assert [item.content for item in store.context("fence").items] == ["ann: Paint the fence."]


def test_notes_that_merely_follow_each_other_share_no_words(store: MemoryStore) -> None:
    store.remember("Fence", "paint the fence", "note")
    store.remember("Egg", "boil the egg", "note")
    store.remember("Fix", "Fix: mend the gate", "note")
    store.remember("Note", "Note: oil the hinge", "note")
    assert names(store, "fence") == ["Fence"]
    assert names(store, "gate") == ["Fix"]


def test_neighbours_share_words_across_calls_but_not_across_projects(
    store: MemoryStore,
) -> None:
    store.remember("A", "the fence", "message", project="one", source="talk")
    store.remember("B", "the egg", "message", project="two", source="talk")
    store.remember("C", "the moon", "message", project="one", source="talk")
    assert names(store, "moon") == ["C", "A"]
    assert names(store, "egg") == ["B"]


def test_common_words_do_not_hide_matches_in_a_small_view(store: MemoryStore) -> None:
    """Rare words select the candidates; a view without them still gets matches."""
    store.remember("Mine", "alpha common", "note", project="small")
    for number in range(50):
        store.remember(f"Other {number}", "rare common", "note", project="large")
    assert [i.name for i in store.context("rare common", project="small").items] == ["Mine"]


SMALL = RowBudget(scored_rows=4, common_rows=6, sampled_rows=10, min_sample=2)


def _found(path: Path, goal: str, mask: bytes | None = None, limit: int = 4) -> Matches:
    """Search with a tiny row budget, as in a file with very many rows; without a mask, in all."""
    with closing(connect(str(path))) as connection:
        if mask is None:
            mask = ViewMasks(connection).mask(("", []))
        table = FtsTable(connection, Tokenizer())
        lists = table.word_lists(seq for seq, shown in enumerate(mask, 1) if shown)
        average = fmean(map(length_of, lists.values()))
        return WordIndex(table, SMALL).match(parse(goal), mask, average, limit)


def _last(path: Path) -> int:
    with closing(connect(str(path))) as connection:
        return int(connection.execute("SELECT max(seq) FROM memory").fetchone()[0])


def test_an_old_item_with_all_common_words_is_found(file_store: MemoryStore, path: Path) -> None:
    file_store.remember("Both", "wing flow", "note")
    file_store.remember_many(
        MemoryDraft(title=str(n), content="the wing" if n % 2 else "the flow", kind="note")
        for n in range(60)
    )
    found = _found(path, "wing flow")
    assert next(iter(found.words)) == 1
    assert [(match.pair.shown, match.seqs) for match in found.pairs] == [("wing flow", {1})]
    assert found.holders["wing"] & found.holders["flow"] == {1}


def test_for_a_common_word_titles_and_newest_items_are_found(
    file_store: MemoryStore, path: Path
) -> None:
    file_store.remember("Flow", "what it is", "note")
    file_store.remember_many(
        MemoryDraft(title=str(n), content="a flow", kind="note") for n in range(60)
    )
    assert list(_found(path, "flow").words) == [1, 61, 60, 59]


def test_for_a_common_word_invisible_rows_take_no_place(
    file_store: MemoryStore, path: Path
) -> None:
    file_store.remember_many(
        MemoryDraft(title="Mine", content="a flow", kind="note") for _ in range(8)
    )
    file_store.remember_many(
        MemoryDraft(title="Flow", content="flow", kind="note") for _ in range(60)
    )
    mask = b"\x01" * 8 + bytes(60)
    found = _found(path, "flow", mask)
    assert list(found.words) == [8, 7, 6, 5]
    assert found.rarity["flow"] == pytest.approx(math.log1p(0.5 / 8.5))


@pytest.mark.rule("M-12")
def test_invisible_rows_decide_neither_what_is_found_nor_its_score(
    file_store: MemoryStore, path: Path
) -> None:
    def remember(count: int, content: str) -> None:
        draft = MemoryDraft(title="Title", content=content, kind="note")
        file_store.remember_many([draft] * count)

    remember(1, "zanzibar wing")
    remember(1, "the flow and the wing and more of it")
    remember(3, "flow")
    remember(40, "a wing")
    goals = ["zanzibar wing", "wing", "flow wing"]
    before = [_found(path, goal, b"\x01" * 45) for goal in goals]
    assert next(iter(before[0].words)) == 1
    for hidden in ("zanzibar", "flow wing " + "word " * 6_000):
        remember(60, hidden)
        mask = (b"\x01" * 45).ljust(_last(path), b"\0")
        after = [_found(path, goal, mask) for goal in goals]
        assert after == before


@pytest.mark.rule("M-12")
def test_forgotten_rows_decide_neither_what_is_found_nor_its_score(
    file_store: MemoryStore, path: Path
) -> None:
    drafts = [MemoryDraft(title="Title", content="a wing", kind="note") for _ in range(40)]
    file_store.remember_many([*drafts, MemoryDraft(title="Both", content="flow wing", kind="note")])
    goals = ["flow", "wing", "flow wing"]
    before = [_found(path, goal) for goal in goals]
    more = [MemoryDraft(title="More", content="flow " * 9, kind="note") for _ in range(30)]
    for answer in file_store.remember_many(more)[:-1]:
        file_store.forget(answer.id)
    last = file_store.remember("Last", "wing", "note")
    file_store.forget(last.id)
    file_store.forget(file_store.context("more").items[0].id)
    assert [_found(path, goal) for goal in goals] == before


@pytest.mark.rule("M-12")
@pytest.mark.parametrize("domain", [None, "Tunnels"])
def test_the_order_of_storing_changes_no_score(file_store: MemoryStore, domain: str | None) -> None:
    """The average length is that of all rows that the view shows, not of the newest."""
    texts = ["shock waves", "shock over a wing " * 20] + ["ok, thanks"] * 510
    scores = {}
    for project, ordered in (("first", texts), ("last", texts[::-1])):
        drafts = [
            MemoryDraft(title="Said", content=text, kind="note", project=project, domain=domain)
            for text in ordered
        ]
        old = file_store.remember_many([drafts[0], *drafts])[0]
        file_store.remember(
            "New", "a word", "note", project=project, related_to=[f"supersedes:{old.id}"]
        )
        view = view_of(OWNER, project=project, domain=domain)
        matches = file_store._engine.match(parse("shock wing"), view, 5)
        scores[project] = sorted(matches.words.values())
    assert len(scores["first"]) == 2
    assert scores["first"] == scores["last"]


def test_for_a_common_word_superseded_rows_take_no_place(
    file_store: MemoryStore, path: Path
) -> None:
    file_store.remember_many(
        MemoryDraft(title="Old", content="a flow", kind="note") for _ in range(3)
    )
    more = file_store.remember_many(
        MemoryDraft(title="Flow", content="flow", kind="note") for _ in range(40)
    )
    links = [f"supersedes:{each.id}" for each in more]
    file_store.remember("New", "nothing of it", "note", related_to=links)
    assert list(_found(path, "flow").words) == [3, 2, 1]


def test_a_rare_word_is_scored_with_the_common_words_around_it(
    file_store: MemoryStore, path: Path
) -> None:
    file_store.remember("Old", "ogive flow", "note")
    file_store.remember_many(
        MemoryDraft(title=str(n), content="a flow", kind="note") for n in range(60)
    )
    found = _found(path, "ogive flow")
    assert next(iter(found.words)) == 1
    assert 1 in found.holders["flow"]


@pytest.mark.rule("M-27")
@pytest.mark.parametrize(
    ("goal", "terms"),
    [
        ("What did Will buy?", "will buy"),
        ("Where is Will's dog, and will it bite?", "will dog bite"),
        ("Was it So or An?", "so an"),
        ("Will it rain? Will it?", "rain"),
        ("what I said", "said"),
        ("What Did Will Buy", "buy"),
        ("WHAT DID WILL BUY", "buy"),
        ("do NOT deploy", "deploy"),
        ('he asked: "Will it?"', "asked"),
        ("Will", "will"),
    ],
)
def test_a_capital_inside_a_sentence_makes_a_common_word_a_name(goal: str, terms: str) -> None:
    assert " ".join(parse(goal).terms) == terms


@given(st.text())
def test_a_query_has_no_duplicate_terms_and_is_bounded(goal: str) -> None:
    query = parse(goal)
    assert len(set(query.terms)) == len(query.terms) <= 48


FAKE = "A1b2C3d4E5f6G7h8I9j0"  # has the form of a secret, and is none


@pytest.mark.parametrize(
    "secret",
    [
        f"ghp_{FAKE}{FAKE}",
        f"sk-{FAKE}",
        "AKIA" + "ABCDEFGHIJKLMNOP",
        f"xoxb-{FAKE}",
        f"eyJhbGciOiJI.eyJzdWIiOi{FAKE}.{FAKE}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{FAKE}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{FAKE}, and cut short",
        f"-----BEGIN PRIVATE KEY-----\n{FAKE * 2_000}",
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{FAKE}",
        f"{FAKE}/{FAKE[1:]}",
        f"sk_live_{FAKE}",
        f"SG.{FAKE}.{FAKE}{FAKE}",
        f"ya29.{FAKE}",
        f"dckr_pat_{FAKE}{FAKE}",
        f"AGE-SECRET-KEY-1{FAKE.upper()}{FAKE.upper()}",
        f"123456789:AA{FAKE}{FAKE[:14]}",
        f"hvs.{FAKE}",
        f"xapp-1-{FAKE}",
        f"ATATT3{FAKE}",
        "dapi" + "0123456789abcdef" * 2,
        f"sq0atp-{FAKE}",
        f"GOCSPX-{FAKE}",
        f"glpat-{FAKE}",
        f"sk-or-v1-{FAKE}",
        f"sk-ant-api03-{FAKE}-_A",
        f"sk-proj-{'a1-B2_c3d4' * 5}",
        f"npm_{FAKE}",
        "hf_" + "abcDEFghiJ" * 3,
        f"pypi-AgE{FAKE}{FAKE}",
        f"gsk_{FAKE}",
        f"xai-{FAKE}",
        f"pplx-{FAKE}",
        f"figd_{FAKE}",
    ],
)
def test_a_secret_is_recognized_by_its_form(secret: str) -> None:
    assert redact(f"before {secret}") == f"before {WITHHELD}"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"Authorization: Bearer {FAKE}", "Authorization: Bearer [secret withheld]"),
        ("postgres://bob:hunter2@db/x", "postgres://bob:[secret withheld]@db/x"),
        ('{"password": "hunter2"}', '{"password": "[secret withheld]"}'),
        ("API_KEY=abcd1234efgh", "API_KEY=[secret withheld]"),
        ("API key: abcd1234efgh", "API key: [secret withheld]"),
        ("SECRET_KEY=django-insecure", "SECRET_KEY=[secret withheld]"),
        ("aws_secret_access_key = abcd/efgh", "aws_secret_access_key = [secret withheld]"),
        ("DB_PASS=hunter2", "DB_PASS=[secret withheld]"),
        ("Uid=bob;Pwd=hunter2;", "Uid=bob;Pwd=[secret withheld];"),
        (f"AccountKey={FAKE}==;x", "AccountKey=[secret withheld];x"),
        ("password:\nhunter2", "password:\n[secret withheld]"),
        ('password="two, words"', 'password="[secret withheld]"'),
        ("{'password': 'two; words'}", "{'password': '[secret withheld]'}"),
        ("The password is hunter2", "The password is [secret withheld]"),
        (f"mcpp.v0.1, mcpp.bearer.{FAKE}", "mcpp.v0.1, mcpp.bearer.[secret withheld]"),
        (f"https://host/c?sv=1&sig={FAKE}&x", "https://host/c?sv=1&sig=[secret withheld]&x"),
        ("redis://:hunter2@db", "redis://:[secret withheld]@db"),
        ("Authorization: token abcdefgh", "Authorization: token [secret withheld]"),
        (
            "https://hooks.slack.com/services/T0123/B0123/x",
            "https://hooks.slack.com/services/[secret withheld]",
        ),
        ("**Password:** hunter2", "**Password:** [secret withheld]"),
        ("- **Password**: `hunter2`", "- **Password**: `[secret withheld]`"),
        ("| password | hunter2 |", "| password | [secret withheld] |"),
        ("|API key|`abcd1234efgh`|", "|API key|`[secret withheld]`|"),
        ("<db_password>hunter2</db_password>", "<db_password>[secret withheld]</db_password>"),
        (r"{\"password\": \"hunter2\"}", r"{\"password\": \"[secret withheld]\"}"),
        (r'password = "a\"bcdef"', 'password = "[secret withheld]"'),
        ("--password hunter", "--password [secret withheld]"),
        ("tool --db-token abcdefgh", "tool --db-token [secret withheld]"),
        ("curl -u bob:hunter2 https://x", "curl -u bob:[secret withheld] https://x"),
        ("pwd: hunter2", "pwd: [secret withheld]"),
        ("set the password to hunter2", "set the password to [secret withheld]"),
        ("the API key is abcd1234efgh", "the API key is [secret withheld]"),
        ("the token `abcd1234efgh`", "the token `[secret withheld]`"),
        ("api_key=abcdefghijklmnop", "api_key=[secret withheld]"),
        ("client_secret: abcDEFghiJKL", "client_secret: [secret withheld]"),
        ("token: abcdefghijklmnopqrstuvwx", "token: [secret withheld]"),
        ("Passwort: geheim", "Passwort: [secret withheld]"),
        ("密码：abcd1234", "密码：[secret withheld]"),
        ("STRIPE_KEY=abcdefgh12345678", "STRIPE_KEY=[secret withheld]"),
        ("export OPENAI_KEY='abcdefgh12345678'", "export OPENAI_KEY='[secret withheld]'"),
        ("ENCRYPTION_KEY=4f3c2b1a9d8e7f6a5b4c", "ENCRYPTION_KEY=[secret withheld]"),
        (f"SIGNING_KEY: ab/{FAKE}+_x==", "SIGNING_KEY: [secret withheld]"),
        ("private_key: abcdef1234567890", "private_key: [secret withheld]"),
        ('{"key": "4f3c2b1a9d8e7f6a5b4c"}', '{"key": "[secret withheld]"}'),
        ('"encryptionKey":"4f3c2b1a9d8e7f6a5b4c"', '"encryptionKey":"[secret withheld]"'),
        ("The key is 4f3c2b1a9d8e7f6a5b4c.", "The key is [secret withheld]."),
        ("the key `4f3c2b1a9d8e7f6a5b4c`", "the key `[secret withheld]`"),
        ("| key | 4f3c2b1a9d8e7f6a5b4c |", "| key | [secret withheld] |"),
        ("SECRET=abcdefghijk", "SECRET=[secret withheld]"),
        ("secret = 'abcdefghijk'", "secret = '[secret withheld]'"),
        ("secret: correcthorse", "secret: [secret withheld]"),
        ('{"secret": "correcthorse"}', '{"secret": "[secret withheld]"}'),
        ("token=deadbeefdeadbeef", "token=[secret withheld]"),
        ("token: abcdefabcdefabcd", "token: [secret withheld]"),
        ("user: bob, pass: hunter22", "user: bob, pass: [secret withheld]"),
        ("pw: hunter22", "pw: [secret withheld]"),
        ("the password `hunter22`", "the password `[secret withheld]`"),
        ("The password for prod is hunter2!", "The password for prod is [secret withheld]"),
        ("password of the db on h1 was hunter2", "password of the db on h1 was [secret withheld]"),
        ("postgres://u:pa/ss@h/db", "postgres://u:[secret withheld]@h/db"),
        ("mysql -uroot -phunter22 x", "mysql -uroot -p[secret withheld] x"),
        ("sshpass -p hunter22 ssh h", "sshpass -p [secret withheld] ssh h"),
        ("redis-cli -h db -a hunter22", "redis-cli -h db -a [secret withheld]"),
    ],
)
def test_only_the_secret_part_is_withheld(text: str, kept: str) -> None:
    assert redact(text) == kept
    assert redact(kept) == kept


@pytest.mark.parametrize(
    "text",
    [
        "token: rotation",
        "The secret of success",
        "skip-this",
        "see https://host/a:b@c",
        "commit 657ea70c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f60",
        "all tests pass: 12 of 12",
        "The password is required, and 8 long",
        'password = ""',
        'password = ""\nhost = "db"',
        "| Password | Length |",
        "the --password flag and --token must be given",
        "tool --password $PASSWORD",
        "docker run -u 1000:1000 image",
        "pwd: /home/bob",
        "change the password to 12 characters",
        "the API key is rotated monthly",
        "api_key=settings.api_key",
        "call(api_key=read_the_key())",
        "the `token` and `secret` columns",
        "npm-package-publishing-pipeline",
        "npm_config_registry_mirror_settings",
        "hf-transformers-migration-guide-v2",
        "sk-learn-migration-2026",
        "sk-SK-localization-site",
        "sk-proj-planning-board-for-the-second-quarter-of-2026",
        "pypi-trusted-publishing-rollout-2026",
        "xai-explainability-dashboard-v3",
        "xapp-manifest-migration",
        "the key is to test early",
        "key: rotation, see docs/keys2",
        "the cache key is tenant_profile_settings_2026",
        "the S3 key: uploads/2026/Report_Final_v2/file",
        "primary key: 550e8400-e29b-41d4-a716-446655440000",
        "key=settings.abcdefgh12345678.name",
        "secret: no one reads it",
        "the secret: Kubernetes",
        "token=none",
        "token = read_token()",
        "token: authorization",
        "all checks pass: python311 and python312",
        "pass: true",
        "the password `min_length=8` setting",
        "The password for prod is kept in a vault",
        "http://host:8080/img@2x.png",
        "mysql -p asks for it; mysqldump -p$PASS",
        "sshpass -p $PASS ssh h",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert redact(text) == text


_PIECES = ["password", "token", "api_key", "KEY", "secret", "pass", "for prod", "sshpass -p ",
           "mysql -p", "correcthorsebattery", "sk-", "/", "--", "-u bob:", "**", "`",
           '"', "'", "\\", ":", "=",
           "|", "<", ">", "</", " ", "\n", "is", "hunter22", FAKE, "x://a:b@", "Bearer ", WITHHELD,
           WITHHELD[:7]]  # fmt: skip


@given(st.text() | st.lists(st.sampled_from(_PIECES), max_size=12).map("".join))
def test_redaction_is_stable(text: str) -> None:
    assert redact(redact(text)) == redact(text)


def test_the_part_after_an_apostrophe_is_not_a_word() -> None:
    assert parse("Bob\u2019s token isn't rotated").terms == ("bob", "token", "isn", "rotated")
    assert parse("vitamin s").terms == ("vitamin", "s")


@pytest.mark.rule("M-09")
@pytest.mark.parametrize("run", ["é", "a\u0301", "ж", "字", "ก"])
def test_a_run_of_letters_is_split_in_linear_time(run: str) -> None:
    start = time.process_time()
    grams((run * 32_768)[:32_768])
    assert time.process_time() - start < 1.0  # it took ten and more
