"""What a goal asks for and the items of a plan do not have (M-47)."""

from collections.abc import Container, Iterator
from itertools import dropwhile
from typing import Final

from mcpp_agents.memory.search.terms import Query, uncovered

# What a goal may begin with: what to do or to write, not the subject ("Write a report on …").
_ARTIFACTS: Final = """
    analyse analysis analyze article assess assessment brief briefing chapter choose compare
    comparison compile create decide describe design discuss doc document documentation draft essay
    evaluate evaluation explain explanation explore guide introduction investigate make memo note
    notes outline overview page paper plan please post prepare presentation produce proposal propose
    readme recommend report research review section slides spec specification study summarise
    summarize summary survey talk tutorial write
"""
_REQUESTS: Final = frozenset(_ARTIFACTS.split())


def missing_terms(query: Query, held: Container[str]) -> Iterator[str]:
    """Yield the dates and words of a goal that are not held, and the parts of runs without spaces.

    Args:
        query: the goal's.
        held: the terms of the query that are held.
    """
    yield from (one.shown for one in query.dates if one.time.terms[0] not in held)
    words = query.plain_words
    subject = list(dropwhile(_REQUESTS.__contains__, words)) or words
    yield from (word for word in subject if word not in held)
    for run in query.runs:
        yield from uncovered(run, frozenset(query.terms), held)
