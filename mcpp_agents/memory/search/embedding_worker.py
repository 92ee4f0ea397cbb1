"""Background embedding: a thread that computes the vectors of new items.

Vectors are stored in half precision, which halves their size and moves a cosine by less than 0.001.

The thread must not outlive the interpreter. When Python ends, it stops a daemon thread as soon as
that asks for the interpreter's lock; if the thread is inside the native code of an embedder, this
unwinds C++ frames that do not allow it, or runs while the library's globals are destroyed, and the
process aborts (134). So a worker that was not closed is stopped by an exit handler.
"""

import atexit
import logging
import threading
from typing import Final

from mcpp_agents.memory.errors import StoreUnavailable
from mcpp_agents.memory.search.embedding import Embedder, finite_vectors
from mcpp_agents.memory.storage.engine import Engine, Item

logger = logging.getLogger("mcpp.memory")

_RETRY_SECONDS: Final = 1.0
_BATCH: Final = 64


class EmbeddingWorker:
    """Owns the thread that adds vectors to an engine, started by the first `wake`."""

    def __init__(self, engine: Engine, embedder: Embedder) -> None:
        self.embedder = embedder
        self._engine = engine
        self._embedded_to = 0
        self._has_warned = False
        self._pending = threading.Event()
        self._closing = threading.Event()
        self._embedding = threading.Lock()
        self._thread: threading.Thread | None = None
        self.wake()  # another process may have left items without vectors

    def wake(self) -> None:
        """Start embedding new items."""
        self._pending.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mcpp-memory", daemon=True)
            atexit.register(self.close)
            self._thread.start()

    def drain(self, limit: int | None = None) -> int:
        """Embed pending items, or about `limit` of them, before returning; return how many."""
        total = 0
        with self._embedding:
            while not self._closing.is_set() and (limit is None or total < limit):
                count = self._embed_some()
                if not count:
                    break
                total += count
        return total

    def close(self) -> None:
        """Finish the current batch and stop the thread."""
        self._closing.set()
        self._pending.set()
        if self._thread:
            self._thread.join()
            atexit.unregister(self.close)

    def _embed_some(self) -> int:
        """Embed some items that have no vector yet, in order, and return how many.

        One whose vector is not finite stays without: this process does not try again.
        """
        model = self.embedder.model
        items = self._engine.items_without_vector(model, self._embedded_to, _BATCH)
        if items:
            made = finite_vectors(self.embedder, [_text(item) for item in items])
            vectors = {
                item.seq: vector.astype("float16").tobytes()
                for item, vector in zip(items, made, strict=True)
                if vector is not None
            }
            if vectors:
                self._engine.add_vectors(model, vectors)
            without = [item.id for item in items if item.seq not in vectors]
            if without and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s gives NaN or infinity for some items, such as %s: they are found by words",
                    model,
                    without[0],
                )
            self._embedded_to = items[-1].seq
        return len(items)

    def _run(self) -> None:
        is_delayed = False
        try:
            while not self._closing.is_set():
                self._pending.wait()
                self._pending.clear()
                try:
                    self.drain()
                    is_delayed = False
                except StoreUnavailable as error:
                    if not is_delayed:
                        logger.warning("embedding is delayed: %s", error.__cause__)
                    is_delayed = True
                    self._closing.wait(_RETRY_SECONDS)
                    self._pending.set()
        except Exception:
            # Search by words still works; the next process to open the file tries again.
            logger.exception("embedding stopped")


def _text(item: Item) -> str:
    return f"{item.title}\n{item.content}"
