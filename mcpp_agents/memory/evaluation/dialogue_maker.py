"""Makes dialogues over many sessions, with questions and the turns that answer them.

Two people talk in 12 to 18 dated sessions. Facts about them are told in passing, between small talk
and reactions that repeat the topic's words, which is what makes real dialogues hard to search: many
turns are about a topic and one of them answers. Questions are asked in other words. Their types:

    single      one turn answers
    multi       two to four turns of different sessions together, or two linked by a third person
    temporal    when something happened, told relative to the session; or what happened at a time
    inference   the answer follows from a turn that shares no word with the question

The texts are made from templates, so results are comparable only with each other. `fold` splits the
kinds of facts into two halves: weights chosen on one are tested on the other.
"""

import random
import re
import tomllib
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from mcpp_agents.memory.search.times import MONTHS

_FILE: Final = Path(__file__).parent / "data" / "dialogues.toml"


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fact: how it is told, asked for, and talked about."""

    name: str
    values: tuple[str, ...]
    told: tuple[str, ...]
    asked: tuple[str, ...]
    prompts: tuple[str, ...]  # what the other says before
    echoes: tuple[str, ...]  # and after
    listed: str = ""  # a question that several values answer
    dated: str = ""  # a question for the time; needs a time in `told`
    implied: tuple[str, ...] = ()  # one question per value, in words that the turn lacks


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """How a third person comes in, what is told of them later, and what needs both."""

    opening: str
    values: tuple[str, ...]
    later: str
    question: str


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What dialogues are made of. Single words are in one string, separated by spaces."""

    names: str
    third_persons: str
    places: str
    about: tuple[str, ...]  # questions that repeat a word of the turn that answers them
    when_about: tuple[str, ...]
    times: tuple[str, ...]
    small_talk: tuple[str, ...]
    empty_words: str
    topics: tuple[Topic, ...]
    links: tuple[Link, ...]


@cache
def parts() -> Parts:
    """Return the parts, from the file beside this module."""
    return msgspec.convert(tomllib.loads(_FILE.read_text()), Parts)


@dataclass(frozen=True)
class MadeTurn:
    """A turn: `source` is SESSION:NUMBER, `on` the session's date."""

    source: str
    speaker: str
    text: str
    on: date


@dataclass(frozen=True)
class MadeQuestion:
    """A question, its type, and the sources of the turns that answer it."""

    text: str
    type: str
    answers: tuple[str, ...]


@dataclass
class MadeConversation:
    """What two people said, and what can be asked about it."""

    turns: list[MadeTurn] = field(default_factory=list)
    questions: list[MadeQuestion] = field(default_factory=list)


def make(seed: int, *, fold: int | None = None, prefix: str = "D") -> MadeConversation:
    """Return a conversation; `fold` 0 or 1 uses one half of the topics and of the links."""
    return _Maker(random.Random(seed), fold, prefix).make()


class _Maker:
    def __init__(self, rng: random.Random, fold: int | None, prefix: str) -> None:
        self._rng = rng
        self._topics = [t for i, t in enumerate(parts().topics) if fold is None or i % 2 == fold]
        self._links = [x for i, x in enumerate(parts().links) if fold is None or i % 2 == fold]
        self._prefix = prefix
        self._people = tuple(rng.sample(parts().names.split(), 2))
        self._made = MadeConversation()
        self._session = 0
        self._place = 0
        self._day = date(2023, rng.randint(1, 6), rng.randint(1, 28))
        # Person, topic → values told and the turns that told them.
        self._told: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def make(self) -> MadeConversation:
        rng = self._rng
        plan: list[tuple[str, ...]] = []
        for person in self._people:
            for topic in self._topics:
                many = rng.choice((2, 3, 4)) if topic.listed and rng.random() < 0.5 else 1
                chosen = rng.sample(topic.values, min(many, len(topic.values)))
                plan += [("fact", person, topic.name, value) for value in chosen]
        rng.shuffle(plan)
        sessions = rng.randint(12, 18)
        share = -(-len(plan) // sessions)
        later: list[tuple[str, str, str]] = []
        for number in range(sessions):
            self._session, self._place = number + 1, 0
            self._day += timedelta(days=rng.randint(5, 21))
            self._small_talk(rng.randint(1, 3))
            for _, person, name, value in plan[number * share : (number + 1) * share]:
                self._fact(person, next(t for t in self._topics if t.name == name), value)
                self._small_talk(rng.randint(1, 4))
            if number in (1, 3, 5) and self._links:
                later.append(self._link())
            if number in (7, 8, 9) and later:
                self._resolve(later.pop(0))
            self._small_talk(rng.randint(1, 3))
        self._ask_lists()
        self._ask_by_month()
        return self._made

    def _say(self, speaker: str, text: str) -> str:
        self._place += 1
        source = f"{self._prefix}{self._session}:{self._place}"
        other = self._other(speaker)
        self._made.turns.append(MadeTurn(source, speaker, text.replace("{n}", other), self._day))
        return source

    def _other(self, speaker: str) -> str:
        return self._people[1] if speaker == self._people[0] else self._people[0]

    def _small_talk(self, turns: int) -> None:
        speaker = self._rng.choice(self._people)
        for _ in range(turns):
            self._say(speaker, self._rng.choice(parts().small_talk))
            speaker = self._other(speaker)

    def _fact(self, person: str, topic: Topic, value: str) -> None:
        rng = self._rng
        when = rng.choice(parts().times)
        template = rng.choice(topic.told)
        dated = "{w" in template
        other = self._other(person)
        if topic.prompts and rng.random() < 0.7:
            self._say(other, rng.choice(topic.prompts))
        text = template.replace("{v_cap}", value[0].upper() + value[1:]).replace("{v}", value)
        text = text.replace("{w_cap}", when[0].upper() + when[1:]).replace("{w}", when)
        filler = rng.choice(parts().small_talk).replace("{n}", other)
        if rng.random() < 0.5:
            text = f"{filler} {text}" if rng.random() < 0.5 else f"{text} {filler}"
        source = self._say(person, text)
        for _ in range(rng.randint(1, 2)):
            self._say(other, rng.choice(topic.echoes).replace("{v}", value))
            if rng.random() < 0.5:
                self._say(person, rng.choice(parts().small_talk))
        own = self._told.setdefault((person, topic.name), [])
        own.append((value, source))
        if rng.random() < 0.6:
            empty = parts().empty_words.split()
            words = re.findall(r"[a-z]{4,}", text.replace(filler, "").lower())
            words = [word for word in words if word not in empty and word not in when]
            of_value = [word for word in words if word in value.lower()]
            word = rng.choice(of_value or words)
            forms = parts().when_about if dated and rng.random() < 0.3 else parts().about
            asked = rng.choice(forms).replace("{n}", person).replace("{k}", word)
            self._ask(asked, "temporal" if forms is parts().when_about else "single", source)
        elif len(own) == 1:  # a second value would answer too: asked as a list
            kind = rng.random()
            if dated and topic.dated and kind < 0.5:
                self._ask(topic.dated.replace("{n}", person), "temporal", source)
            elif topic.implied and kind < 0.75:
                question = topic.implied[topic.values.index(value)].replace("{n}", person)
                self._ask(question, "inference", source)
            else:
                self._ask(rng.choice(topic.asked).replace("{n}", person), "single", source)

    def _link(self) -> tuple[str, str, str]:
        rng = self._rng
        link = rng.choice(self._links)
        person, third = rng.choice(self._people), rng.choice(parts().third_persons.split())
        value, place = rng.choice(link.values), rng.choice(parts().places.split())
        source = self._say(person, link.opening.replace("{o}", third).replace("{v}", value))
        self._say(self._other(person), rng.choice(parts().small_talk))
        asked = link.question.replace("{n}", person).replace("{v}", value)
        told = link.later.replace("{o}", third).replace("{p}", place)
        return source, f"{person}\t{told}", asked

    def _resolve(self, link: tuple[str, str, str]) -> None:
        first, told, question = link
        person, _, text = told.partition("\t")
        second = self._say(person, text)
        self._say(self._other(person), self._rng.choice(parts().small_talk))
        self._ask(question, "multi", first, second)

    def _ask(self, text: str, type: str, *answers: str) -> None:
        self._made.questions.append(MadeQuestion(text, type, answers))

    def _ask_lists(self) -> None:
        for (person, name), own in self._told.items():
            topic = next(t for t in self._topics if t.name == name)
            if topic.listed and len(own) > 1:
                answers = tuple(source for _, source in own)
                self._ask(topic.listed.replace("{n}", person), "multi", *answers)
        # What was asked about the first value alone is answered by the others too.
        several = {own[0][1]: [s for _, s in own] for own in self._told.values() if len(own) > 1}
        self._made.questions[:] = [
            MadeQuestion(q.text, q.type, tuple(several[q.answers[0]]))
            if q.type == "single" and q.answers[0] in several
            else q
            for q in self._made.questions
        ]

    def _ask_by_month(self) -> None:
        by_month: dict[tuple[str, int, int], list[str]] = {}
        turns = {turn.source: turn for turn in self._made.turns}
        for (person, _), own in self._told.items():
            for _, source in own:
                on = turns[source].on
                by_month.setdefault((person, on.year, on.month), []).append(source)
        for (person, year, month), sources in sorted(by_month.items())[::3]:
            if len(sources) <= 4:
                text = f"What did {person} talk about in {MONTHS[month - 1].capitalize()} {year}?"
                self._ask(text, "temporal", *sources)
