"""The options that the commands share."""

import argparse
from itertools import permutations

import pytest

from mcpp_agents.cli.options import add_arguments

TOKENS = ("--token", "--token-file", "--token-command")


@pytest.mark.parametrize(("first", "second"), list(permutations(TOKENS, 2)))
def test_two_options_for_the_token_are_refused(
    first: str, second: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([first, "a", second, "b"])
    assert f"argument {second}: not allowed with argument {first}" in capsys.readouterr().err
