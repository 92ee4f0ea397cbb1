"""`mcpp memory bench`, its collections and measures."""

import json
from pathlib import Path

import pytest

from mcpp.cli import main as command_line
from mcpp_agents.memory import MemoryStoreError
from mcpp_agents.memory.evaluation.collections import (
    made_dialogues,
    read_cranfield,
    read_dialogues,
    read_locomo,
)
from mcpp_agents.memory.evaluation.dialogue_maker import make
from mcpp_agents.memory.evaluation.measures import bootstrap, ndcg, recall
from mcpp_agents.memory.search.times import MONTHS

LOCOMO = [
    {
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Bob",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ann", "dia_id": "D1:1", "text": "I bought a kayak yesterday."},
                {"speaker": "Bob", "dia_id": "D1:2", "text": "Wow, Ann, a kayak!"},
            ],
            "session_2_date_time": "soon",
            "session_2": [
                {"speaker": "Bob", "dia_id": "D2:1", "text": "Look", "blip_caption": "a red boat"}
            ],
        },
        "qa": [
            {"question": "When did Ann buy it?", "evidence": ["D1:1"], "category": 2},
            {"question": "Both?", "evidence": ["D1:1; D2:1"], "category": 1},
            {"question": "When did Bob buy it?", "evidence": ["D1:1"], "category": 5},
            {"question": "Nowhere?", "evidence": [], "category": 4},
        ],
    }
]


@pytest.mark.rule("M-52")
def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "locomo.json"
    file.write_text(json.dumps(LOCOMO))
    arguments = ["memory", "bench", "--conversations", "1", "--embedders", "none"]
    assert command_line.main([*arguments, "--locomo", str(file)]) == 0
    out = capsys.readouterr().out
    assert "| plain FTS5 | 0." in out
    assert "| memory, words | 0." in out
    assert "LoCoMo (locomo.json): 3 questions, 3 documents" in out


DIALOGUES = """## Ann and Bob
# D1 2023-05-08
Ann: I bought a kayak: a red one.
Bob: Wow!
temporal | When did Ann buy it? | D1:1

## Cleo and Dan
# D1
Cleo: Hello.
Who greets? | D1:1
"""


@pytest.mark.rule("M-52")
def test_dialogues_in_plain_text_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dialogues.txt"
    file.write_text(DIALOGUES)
    first, second = read_dialogues(file)
    assert [one.text for one in first.documents] == [
        "Ann: I bought a kayak: a red one.",
        "Bob: Wow!",
    ]
    assert first.documents[0].valid_at == "2023-05-08"
    assert second.documents[0].valid_at is None
    assert [one.type for one in (*first.questions, *second.questions)] == ["temporal", "single"]
    arguments = ["memory", "bench", "--conversations", "0", "--embedders", "none"]
    assert command_line.main([*arguments, "--dialogues", str(file)]) == 0
    assert "dialogues (dialogues.txt): 2 questions, 3 documents" in capsys.readouterr().out


@pytest.mark.rule("M-52")
@pytest.mark.parametrize("has_file", [False, True])
def test_without_questions_there_is_one_line_instead_of_a_table(
    has_file: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "talk.txt"
    path.write_text("# D1\nMia: Hello, Tom!\n", encoding="utf-8")
    files = ["--dialogues", str(path)] if has_file else []
    assert (
        command_line.main(
            ["memory", "bench", "--conversations", "0", "--embedders", "none", *files]
        )
        == 1
    )
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    said = "no questions: dialogues (talk.txt)" if has_file else "nothing to measure"
    assert said in output.err


@pytest.mark.rule("M-52")
@pytest.mark.parametrize(
    ("line", "wrong", "reported"),
    [
        ("temporal | When did Ann buy it? | D1:1", "When? | D1:9", "line 5: no such turns: D1:9"),
        ("temporal | When did Ann buy it? | D1:1", "none | Nowhere? | ", "line 5: no turn answers"),
        ("temporal | When did Ann buy it? | D1:1", "When? | D1-1", "line 5 is neither a turn nor"),
        ("# D1 2023-05-08", "# D1 2023-02-31", "line 2: not an ISO 8601 date: 2023-02-31"),
        ("Cleo: Hello.", "Hello.", "line 9 is neither a turn nor a question"),
    ],
)
def test_what_is_wrong_in_a_file_of_dialogues_is_reported_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, wrong: str, reported: str
) -> None:
    file = tmp_path / "dialogues.txt"
    assert line in DIALOGUES
    file.write_text(DIALOGUES.replace(line, wrong))
    arguments = ["memory", "bench", "--conversations", "0", "--embedders", "none"]
    assert command_line.main([*arguments, "--dialogues", str(file)]) == 1
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert reported in output.err


@pytest.mark.rule("M-52")
def test_a_turn_may_contain_the_separator_of_questions(tmp_path: Path) -> None:
    file = tmp_path / "dialogues.txt"
    file.write_text(DIALOGUES.replace("Bob: Wow!", "Bob: Do you | really"))
    first, _ = read_dialogues(file)
    assert first.documents[1].text == "Bob: Do you | really"
    assert [one.type for one in first.questions] == ["temporal"]


def test_locomos_format_is_read(tmp_path: Path) -> None:
    file = tmp_path / "locomo.json"
    file.write_text(json.dumps(LOCOMO))
    [found] = read_locomo(file)
    assert [d.valid_at for d in found.documents] == ["2023-05-08T13:56:00"] * 2 + [None]
    assert found.documents[2].text == "Bob: Look [shares a red boat]"
    assert [(q.type, list(q.gains)) for q in found.questions] == [
        ("temporal", ["D1:1"]),
        ("multi", ["D1:1", "D2:1"]),
        ("swapped", ["D1:1"]),
    ]
    file.write_text("{}")
    assert read_locomo(file) == []
    for wrong in ("[1]", json.dumps(LOCOMO).replace('"Both?"', "7")):
        file.write_text(wrong)
        with pytest.raises(MemoryStoreError, match="format"):
            read_locomo(file)


def test_cranfields_files_are_read(tmp_path: Path) -> None:
    with pytest.raises(MemoryStoreError, match="Cranfield"):
        read_cranfield(tmp_path)
    (tmp_path / "cran.all.1400").write_text(".I 1\n.T\na title\n.A\nx\n.W\nsome text\n")
    (tmp_path / "cran.qry").write_text(".I 001\n.W\nwhat text\n")
    (tmp_path / "cranqrel").write_text("1 1 -1\n")
    [found] = read_cranfield(tmp_path)
    assert (found.documents[0].title, found.documents[0].text) == ("a title", "some text")
    assert found.questions[0].gains == {"1": 4}


def test_made_dialogues_are_the_same_every_time_and_their_answers_exist() -> None:
    assert make(5) == make(5) != make(6)
    [found] = made_dialogues(1, seed=5)
    ids = {document.id for document in found.documents}
    assert {question.type for question in found.questions} == {
        "single",
        "multi",
        "temporal",
        "inference",
    }
    assert all(question.gains.keys() <= ids for question in found.questions)
    halves = [{q.text for q in make(5, fold=fold).questions} for fold in (0, 1)]
    in_both = halves[0] & halves[1]
    assert all(any(month.capitalize() in text for month in MONTHS) for text in in_both)


def test_measures_are_as_defined() -> None:
    assert ndcg(["a", "b"], {"a": 1, "b": 1}) == 1
    assert ndcg(["x", "a"], {"a": 1}) == pytest.approx(0.6309, abs=1e-4)
    assert recall(["a", "x"], {"a": 1, "b": 1}, 2) == 0.5
    low, high = bootstrap([0.0, 1.0] * 50)
    assert 0.3 < low < 0.5 < high < 0.7
