"""Quality of memory search: `mcpp memory bench` with Cranfield, and dialogues written by hand.

    python -m benchmarks.retrieval [--data FOLDER] [--embedders none,wordllama,minilm]

conversations.txt: six conversations of two people in 8 to 12 dated sessions, 808 turns and 545
questions. The first questions of each paraphrase and were written before anything was searched; the
others, after *swapped*, use more words of the turns and were added when plain FTS5 reached .21.
Weights for dialogues were chosen on these and the
made-up ones; what they give on a conversation that they were not chosen on is in docs/memory.md.
Weights for written texts were fixed on Cranfield's odd questions. dialogues.txt (102 turns, 46
questions) is older and smaller. Types of questions are those of `dialogue_maker`, and *swapped*: a
question that names the wrong person.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mcpp_agents.memory.evaluation.bench_command import print_tables
from mcpp_agents.memory.evaluation.collections import (
    made_dialogues,
    read_cranfield,
    read_dialogues,
)
from mcpp_agents.memory.search.embedding import available

_DATA = Path(__file__).parent.parent.parent / "shared" / "data" / "cranfield"
_FOLDER = Path(__file__).parent


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print tables. Return 0, or 2 if the data is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval")
    parser.add_argument("--data", type=Path, default=_DATA, help="folder with the Cranfield files")
    parser.add_argument("--embedders", default=",".join(reversed(available())))
    options = parser.parse_args(argv)
    tables = {
        "conversations written by hand": read_dialogues(_FOLDER / "conversations.txt"),
        "short dialogues written by hand": read_dialogues(_FOLDER / "dialogues.txt"),
        "made-up dialogues": made_dialogues(6),
    }
    has_cranfield = (options.data / "cran.all.1400").is_file()
    if has_cranfield:
        tables["Cranfield"] = read_cranfield(options.data)
    else:
        print(f"No Cranfield collection in {options.data}; set its folder with --data.")
    print_tables(tables, options.embedders.split(","))
    return 0 if has_cranfield else 2


def run() -> None:
    main([])


if __name__ == "__main__":
    sys.exit(main())
