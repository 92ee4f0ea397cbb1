"""Collections of documents and questions: made-up dialogues, and files of several formats."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.evaluation.dialogue_maker import make

# LoCoMo's numbers for the types of its questions. The last name the wrong person: their evidence is
# what the other one said.
_LOCOMO_TYPES: Final = {1: "multi", 2: "temporal", 3: "inference", 4: "single", 5: "swapped"}
_LOCOMO_TIME: Final = "%I:%M %p on %d %B, %Y"
_TURN_ID: Final = re.compile(r"D\d+:\d+")
# A turn may contain the separator, too: only turns are named after the last one of a question.
_QUESTION: Final = re.compile(r".+ \|(?: +\S*:\d+)* *")


@dataclass(frozen=True)
class Document:
    """An abstract, which begins with its title, or a dialogue turn, titled by its speaker."""

    id: str
    title: str
    text: str
    kind: str = "note"
    source: str | None = None
    valid_at: str | None = None


@dataclass(frozen=True)
class Question:
    """A question, and the gain of each document that answers it."""

    text: str
    gains: dict[str, int]
    type: str = "single"


@dataclass(frozen=True)
class Collection:
    """Documents that are searched together, and the questions about them."""

    documents: Sequence[Document]
    questions: Sequence[Question]


def made_dialogues(
    conversations: int, *, seed: int = 1, fold: int | None = None
) -> list[Collection]:
    """Return made-up conversations, each searched on its own."""
    found = []
    for number in range(conversations):
        made = make(seed + number, fold=fold)
        documents = [
            _turn(turn.source, turn.speaker, turn.text, turn.on.isoformat()) for turn in made.turns
        ]
        questions = [
            Question(one.text, dict.fromkeys(one.answers, 1), one.type) for one in made.questions
        ]
        found.append(Collection(documents, questions))
    return found


def read_cranfield(folder: Path) -> list[Collection]:
    """Return the Cranfield collection. Judgements refer to questions by position, not by number.

    Raises:
        MemoryStoreError: the folder lacks its files.
    """
    try:
        documents = [
            Document(number, _joined(fields.get("T", [])), _joined(fields.get("W", [])))
            for number, fields in _records(folder / "cran.all.1400")
        ]
        gains: dict[int, dict[str, int]] = {}
        for line in (folder / "cranqrel").read_text().splitlines():
            question, document, code = line.split()
            # −1 marks the paper that prompted the question; treated as 1, a complete answer.
            worth = 5 - (1 if code == "-1" else int(code))
            gains.setdefault(int(question), {})[document] = worth
        questions = [
            Question(_joined(fields["W"]), gains[position])
            for position, (_, fields) in enumerate(_records(folder / "cran.qry"), 1)
        ]
    except (OSError, KeyError, ValueError) as error:
        raise MemoryStoreError(f"{folder} does not contain the Cranfield files: {error}") from None
    return [Collection(documents, questions)]


def read_dialogues(file: Path) -> list[Collection]:
    """Return the conversations of a text file, each searched on its own.

    `## NAMES` begins a conversation and `# SESSION DATE` a session, whose lines are turns,
    `NAME: TEXT`. A question is a line `TYPE | TEXT | SESSION:TURN …`; the date, the type and the
    first heading may be left out.

    Raises:
        MemoryStoreError: the file cannot be read, or has another format; it names the line.
    """
    parts: list[list[tuple[int, str]]] = [[]]
    try:
        for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), 1):
            if line.startswith("## "):
                parts.append([])
            elif line.strip():
                parts[-1].append((number, line))
        return [_dialogue(part) for part in parts if part]
    except (OSError, ValueError) as error:
        raise MemoryStoreError(f"{file} is not a file of dialogues: {error}") from None


def _dialogue(lines: Sequence[tuple[int, str]]) -> Collection:
    documents: list[Document] = []
    questions = []
    session, when, place = "", None, 0
    for number, line in lines:
        if line.startswith("# "):
            session, _, date = line.removeprefix("# ").strip().partition(" ")
            when, place = _session_date(number, date), 0
        elif _QUESTION.fullmatch(line):
            asked, _, answers = line.rpartition("|")
            *type, text = asked.strip().split(" | ", 1)
            questions.append((number, Question(text, dict.fromkeys(answers.split(), 1), *type)))
        else:
            speaker, separator, text = line.partition(": ")
            if not separator or "|" in speaker:
                raise ValueError(f"line {number} is neither a turn nor a question")
            place += 1
            documents.append(_turn(f"{session}:{place}", speaker, text, when))
    known = {one.id for one in documents}
    for number, question in questions:
        if unknown := sorted(question.gains.keys() - known):
            raise ValueError(f"line {number}: no such turns: {' '.join(unknown)}")
        if not question.gains:
            raise ValueError(f"line {number}: no turn answers the question")
    return Collection(documents, [question for _, question in questions])


def _session_date(number: int, text: str) -> str | None:
    try:
        if text:
            datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"line {number}: not an ISO 8601 date: {text}") from None
    return text or None


def read_locomo(file: Path) -> list[Collection]:
    """Return the conversations of a file in LoCoMo's JSON format, each searched on its own.

    Questions without evidence in the dialogue are left out.

    Raises:
        MemoryStoreError: the file has another format.
    """
    try:
        samples = msgspec.json.decode(file.read_bytes())
        return [_locomo_sample(sample) for sample in samples]
    except (OSError, msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise MemoryStoreError(f"{file} is not in LoCoMo's format: {error!r}") from None


def _locomo_sample(sample: dict[str, Any]) -> Collection:
    said = sample["conversation"]
    documents = []
    number = 1
    while f"session_{number}_date_time" in said:
        when = _locomo_time(said[f"session_{number}_date_time"])
        for turn in said.get(f"session_{number}") or ():
            text = _text(turn["text"])
            if caption := turn.get("blip_caption"):
                text = f"{text} [shares {caption}]"
            documents.append(_turn(turn["dia_id"], turn["speaker"], text, when))
        number += 1
    known = {document.id for document in documents}
    questions = []
    for asked in sample["qa"]:
        type = _LOCOMO_TYPES.get(asked.get("category"))
        named = [id for text in asked.get("evidence") or () for id in _TURN_ID.findall(text)]
        gains = {id: 1 for id in named if id in known}
        if type and gains:
            questions.append(Question(_text(asked["question"]), gains, type))
    return Collection(documents, questions)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not a text: {value!r}")
    return value


def _locomo_time(text: str) -> str | None:
    try:
        return datetime.strptime(text.strip().upper(), _LOCOMO_TIME).isoformat()
    except ValueError:
        return None


def _turn(id: str, speaker: str, text: str, when: str | None) -> Document:
    return Document(id, speaker, f"{speaker}: {text}", "message", id, when)


def _records(path: Path) -> list[tuple[str, dict[str, list[str]]]]:
    records: list[tuple[str, dict[str, list[str]]]] = []
    lines: list[str] = []
    for line in path.read_text().splitlines():
        if head := re.fullmatch(r"\.I (\d+)\s*", line):
            records.append((str(int(head[1])), {}))
        elif re.fullmatch(r"\.[TABW]\s*", line):
            lines = records[-1][1].setdefault(line[1], [])
        else:
            lines.append(line)
    return records


def _joined(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())
