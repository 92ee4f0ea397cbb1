"""Describing an agent: what is written wrongly is told at once."""

import pytest

import mcpp
from mcpp.client.connection import Options


def function() -> str:
    return ""


@pytest.mark.parametrize("decorator", ["on", "resource", "method"])
def test_a_decorator_without_its_brackets_says_how_it_is_written(decorator: str) -> None:
    agent = mcpp.Participant("agent")
    with pytest.raises(TypeError, match=rf'write it as @agent\.{decorator}\("'):
        getattr(agent, decorator)(function)


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "line\n"])
def test_a_name_that_no_participant_can_have_is_told(name: str) -> None:
    with pytest.raises(mcpp.DecodeError, match="is not 1 to 64 of"):
        mcpp.Participant(name)


@pytest.mark.parametrize(("buffer", "unechoed"), [(0, 1), (1, 0)])
def test_a_buffer_in_which_nothing_fits_is_told(buffer: int, unechoed: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Options(buffer_messages=buffer, unechoed_messages=unechoed)
