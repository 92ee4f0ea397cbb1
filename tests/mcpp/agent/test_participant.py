"""Describing an agent: mistakes are reported at once."""

import pytest

import mcpp
from mcpp.client.connection import Options


def function() -> str:
    return ""


@pytest.mark.parametrize("decorator", ["on", "resource", "method"])
def test_a_decorator_without_parentheses_shows_the_correct_usage(decorator: str) -> None:
    agent = mcpp.Participant("agent")
    with pytest.raises(TypeError, match=rf'write it as @agent\.{decorator}\("'):
        getattr(agent, decorator)(function)


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "line\n"])
def test_an_invalid_participant_name_is_an_error(name: str) -> None:
    with pytest.raises(mcpp.EncodeError, match="is not 1 to 64 characters from"):
        mcpp.Participant(name)


@pytest.mark.parametrize(("buffer", "unechoed"), [(0, 1), (1, 0)])
def test_a_buffer_size_below_one_is_an_error(buffer: int, unechoed: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Options(buffer_messages=buffer, unechoed_messages=unechoed)
