"""Quality of memory search: `mcpp memory bench` with Cranfield, and a small set written by hand.

    python -m benchmarks.retrieval [--data FOLDER] [--embedders none,wordllama,minilm]

Weights were tuned on Cranfield's odd questions and on half of the topics of the made-up dialogues.
The dialogues in dialogues.txt (102 turns, 46 questions) were written by hand: a small check that
neither makes search in conversations worse.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mcpp_agents.memory.evaluation.bench_command import print_tables
from mcpp_agents.memory.evaluation.collections import (
    Collection,
    Document,
    Question,
    made_dialogues,
    read_cranfield,
)
from mcpp_agents.memory.search.embedding import available

_DATA = Path(__file__).parent.parent.parent / "shared" / "data" / "cranfield"
_DIALOGUES = Path(__file__).parent / "dialogues.txt"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print tables. Return 0, or 2 if the data is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval")
    parser.add_argument("--data", type=Path, default=_DATA, help="folder with the Cranfield files")
    parser.add_argument("--embedders", default=",".join(reversed(available())))
    options = parser.parse_args(argv)
    tables = {
        "dialogues written by hand": [load_dialogues(_DIALOGUES)],
        "made-up dialogues": made_dialogues(6),
    }
    has_cranfield = (options.data / "cran.all.1400").is_file()
    if has_cranfield:
        tables["Cranfield"] = read_cranfield(options.data)
    else:
        print(f"No Cranfield collection in {options.data}; set its folder with --data.")
    print_tables(tables, options.embedders.split(","))
    return 0 if has_cranfield else 2


def load_dialogues(file: Path) -> Collection:
    """Return the dialogue turns (`NAME: TEXT`) and the questions with their answers."""
    turns: dict[str, Document] = {}
    questions: list[Question] = []
    dialogue, place = "", 0
    for line in file.read_text().splitlines():
        if line.startswith("# "):
            dialogue, place = line.removeprefix("# "), 0
        elif "|" in line:
            text, _, answers = line.partition(" | ")
            questions.append(Question(text, dict.fromkeys(answers.split(), 1)))
        elif line:
            place += 1
            source, speaker = f"{dialogue}:{place}", line.partition(":")[0]
            turns[source] = Document(source, speaker, line, "message", source)
    return Collection(list(turns.values()), questions)


def run() -> None:
    main([])


if __name__ == "__main__":
    sys.exit(main())
