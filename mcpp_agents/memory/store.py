"""The store: `remember`, `context` and `forget` for one principal, over any engine."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import uuid6

from mcpp_agents.memory.access import OWNER, Principal, reach_of, scope_for
from mcpp_agents.memory.errors import (
    AccessDenied,
    CapReached,
    InvalidMemory,
    MemoryFault,
    UnknownMemory,
)
from mcpp_agents.memory.pack import ContextPack, Forgotten, Remembered
from mcpp_agents.memory.redaction import redact_all
from mcpp_agents.memory.requests import (
    DraftFields,
    ForgetRequest,
    MemoryDraft,
    PackFields,
    PackRequest,
    ScopeFields,
    digest_key,
    read,
)
from mcpp_agents.memory.search.compiler import Compiler
from mcpp_agents.memory.search.embedding import Embedder, load
from mcpp_agents.memory.storage.engine import AuditEntry, Engine, Item, ItemLink
from mcpp_agents.memory.storage.sqlite import SqliteEngine
from mcpp_agents.memory.vocabulary import facet_of

if TYPE_CHECKING:
    from mcpp_agents.memory.search.embedding_worker import EmbeddingWorker

# What one participant can add in an hour by way of the bus.
BUS_HOURLY_CAP: Final = 120
# What is stored in one write, about a fifth of a second: other processes get their turn between.
BATCH: Final = 1_000


@dataclass(frozen=True)
class Caller:
    """On whose behalf a store acts.

    The principal decides what may be read and written. On the bus it is the pod, and `author` is
    the participant that spoke: what it stores is marked with its name, and capped.
    """

    principal: Principal = OWNER
    author: str | None = None
    origin: str = "direct"


# The library and stdio act as whoever owns the file.
_OWNER: Final = Caller()


class MemoryStore:
    """Memories in one database, as one caller may use them. `acting_as` gives the same store to
    another caller; only the first one, from `open`, closes it."""

    def __init__(
        self,
        engine: Engine,
        *,
        caller: Caller = _OWNER,
        background: "EmbeddingWorker | None" = None,
        clock: Callable[[], float] = time.time,
        bus_hourly_cap: int = BUS_HOURLY_CAP,
    ) -> None:
        self._engine = engine
        self._caller = caller
        self._background = background
        self._clock = clock
        self._bus_hourly_cap = bus_hourly_cap

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        embedder: Embedder | str | None = "auto",
        clock: Callable[[], float] = time.time,
        bus_hourly_cap: int = BUS_HOURLY_CAP,
    ) -> Self:
        """Open or make a memory file, as its owner.

        Args:
            embedder: an embedder, one's name, or None for words alone; `auto` takes the best
                that is installed.
            clock: seconds since 1970.
            bus_hourly_cap: how many memories a participant may add in an hour by way of a pod.

        Raises:
            MemoryFault: the file is not a memory file, or the embedder is not installed.
        """
        chosen = load(embedder) if isinstance(embedder, str) else embedder
        engine = SqliteEngine(fspath(path))
        background = None
        if chosen is not None:
            from mcpp_agents.memory.search.embedding_worker import (
                EmbeddingWorker,  # needs NumPy, as embedders do
            )

            background = EmbeddingWorker(engine, chosen)
        return cls(engine, background=background, clock=clock, bus_hourly_cap=bus_hourly_cap)

    def acting_as(
        self, principal: Principal, *, author: str | None = None, origin: str = "direct"
    ) -> "MemoryStore":
        """The same store for another caller."""
        return MemoryStore(
            self._engine,
            caller=Caller(principal, author, origin),
            background=self._background,
            clock=self._clock,
            bus_hourly_cap=self._bus_hourly_cap,
        )

    def close(self) -> None:
        """Stop embedding and let go of the file. What is not embedded yet is so the next time."""
        if self._background:
            self._background.close()
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def remember(
        self, title: str, content: str, kind: str, **fields: Unpack[DraftFields]
    ) -> Remembered:
        """Store one memory; the other fields are those of `Draft`.

        Raises:
            MemoryFault: a field breaks a rule, or the caller may not write there.
        """
        with self.auditing("remember"):
            draft = read({"title": title, "content": content, "kind": kind, **fields}, MemoryDraft)
            return self.remember_many([draft])[0]

    def remember_many(
        self, drafts: Iterable[MemoryDraft], *, metadata: Mapping[str, Any] | None = None
    ) -> list[Remembered]:
        """Store many: all or none of each `BATCH`. They can be found by their words at once.

        Args:
            metadata: facts that the program itself adds to each, such as a lineage; only with
                them a source may be an address on the bus.
        """
        wanted = list(drafts)
        batches = (wanted[start : start + BATCH] for start in range(0, len(wanted), BATCH))
        with self.auditing("remember"):
            for draft in wanted:
                draft.check()
                if metadata is None:
                    draft.check_source()
            return [answer for batch in batches for answer in self._remember(batch, metadata or {})]

    def context(self, goal: str, **fields: Unpack[PackFields]) -> ContextPack:
        """Compile what is worth knowing for a goal; the other fields are those of `PackRequest`.

        Raises:
            MemoryFault: a field breaks a rule, or the caller may not read there.
        """
        with self.auditing("context"):
            return self.compile(read({"goal": goal, **fields}, PackRequest))

    def compile(self, request: PackRequest) -> ContextPack:
        """`context`, for a request that is already an object."""
        with self.auditing("context"):
            request.check()
        request = request.redacted()
        asked = {
            "goal_length": len(request.goal),
            "intent": request.intent,
            "layer": request.layer,
            "project": request.project,
            "agent_id": request.agent_id,
        }
        with self.auditing("context", **asked):
            pack = self._compiler().compile(request, self._caller.principal, self._clock())
        self._audit("context", **asked, ids=[item.id for item in pack.items])
        return pack

    def search(
        self, text: str, *, limit: int = 100, **fields: Unpack[ScopeFields]
    ) -> list[tuple[str, float]]:
        """Ids by plain relevance, without intents, ages and facets: for evaluation.

        The relevance is relative to the best. The other fields are project, agent_id and domain.
        """
        request = read({"goal": text, **fields}, PackRequest)
        request.check()
        return self._compiler().rank(request.redacted(), self._caller.principal, limit)

    def forget(self, id: str) -> Forgotten:
        """Erase a memory, its relations and its traces in the index. What it superseded is back.

        Raises:
            UnknownMemory: there is none that the caller may see.
            AccessDenied: it is another's.
        """
        with self.auditing("forget"):
            return self._forget(read({"id": id}, ForgetRequest))

    def audited(self, last: int = 20) -> list[AuditEntry]:
        """The latest rows of the audit, in their order; only the file's owner reads them.

        Raises:
            AccessDenied: the caller is another.
        """
        if self._caller != _OWNER:
            raise AccessDenied("Only the file's owner reads the audit")
        return self._engine.audited(last)

    @contextmanager
    def auditing(self, tool: str, **details: Any) -> Iterator[None]:
        """Leave a row about a call that is refused; those that succeed leave their own."""
        try:
            yield
        except MemoryFault as fault:
            if not fault.audited:
                fault.audited = True
                self._audit(tool, **details, refused=type(fault).__name__)
            raise

    def knows(self, id: str) -> bool:
        """Whether there is such a memory that the caller may name."""
        return bool(self._engine.find([id], reach_of(self._caller.principal)))

    def has_stored(self, idempotency_key: str) -> bool:
        """Whether the caller has stored something under this key."""
        return self._known(digest_key(idempotency_key), {}) is not None

    def opted_out(self) -> frozenset[str]:
        """The contexts of which the caller, a pod, is to remember nothing (M-33)."""
        return self._engine.opted_out(self._caller.principal.id)

    def opt_out(self, contexts: AbstractSet[str]) -> None:
        """Let these be the contexts that have opted out, and no others."""
        principal = self._caller.principal.id
        with self._engine.writing():
            known = self._engine.opted_out(principal)
            self._engine.opt_out(principal, contexts - known, known - contexts)

    def embed_pending(self, limit: int | None = None) -> int:
        """Embed here and now what has no vector yet, or about so many; how many that were."""
        return self._background.drain(limit) if self._background else 0

    # Inside

    def _remember(self, wanted: list[MemoryDraft], metadata: Mapping[str, Any]) -> list[Remembered]:
        """One write: all or none."""
        now = self._clock()
        answers: list[Remembered] = []
        items: list[Item] = []
        links: list[ItemLink] = []
        keys: dict[str, Item] = {}
        with self._engine.writing():
            for draft in wanted:
                key = draft.idempotency_key and digest_key(draft.idempotency_key)
                known = self._known(key, keys)
                plain = draft.redacted()
                item = self._item(plain, key, now, metadata)
                if known is None:
                    links += self._links(plain, item)
                    items.append(item)
                    if key:
                        keys[key] = item
                    answers.append(_answer(item, created=True, secrets_withheld=plain != draft))
                elif not metadata and not _same(item, known):
                    raise InvalidMemory(f"idempotency_key was given to another memory: {known.id}")
                else:
                    answers.append(_answer(known, created=False, secrets_withheld=False))
            self._check_cap(len(items), now)
            self._engine.add(items, links)
            self._audit(
                "remember",
                ids=[answer.id for answer in answers],
                lengths=[len(draft.content) for draft in wanted],
                created=len(items),
            )
        if self._background and items:
            self._background.wake()
        return answers

    def _forget(self, request: ForgetRequest) -> Forgotten:
        with self._engine.writing():
            caller = self._caller
            # Whoever owns the file can erase it: nothing in it is beyond the owner's reach.
            view = None if caller == _OWNER else reach_of(caller.principal)
            item = self._engine.find([request.id], view).get(request.id)
            if item is None:
                raise UnknownMemory(request.id)
            if not self._owns(item) and caller != _OWNER:
                raise AccessDenied(f"Only its author may forget {request.id}")
            self._engine.remove(item.seq)
            self._audit("forget", ids=[item.id])
        return Forgotten(id=item.id)

    def _owns(self, item: Item) -> bool:
        """Whether the caller is its author: a name alone is somebody else's in another pod."""
        caller = self._caller
        return (item.principal, item.author) == (caller.principal.id, caller.author)

    def _compiler(self) -> Compiler:
        return Compiler(self._engine, self._background.index if self._background else None)

    def _known(self, key: str | None, keys: Mapping[str, Item]) -> Item | None:
        if key is None:
            return None
        caller = self._caller
        return keys.get(key) or self._engine.keyed(caller.principal.id, caller.author, key)

    def _item(
        self, draft: MemoryDraft, key: str | None, now: float, metadata: Mapping[str, Any]
    ) -> Item:
        principal = self._caller.principal
        return Item(
            id=f"mem_{uuid6.uuid7().hex}",
            scope=scope_for(principal, project=draft.project, agent=draft.agent_id),
            kind=draft.kind,
            title=draft.title,
            content=draft.content,
            principal=principal.id,
            author=self._caller.author,
            origin=self._caller.origin,
            created_at=now,
            updated_at=now,
            domain=draft.domain,
            project=draft.project or principal.home,
            agent_id=draft.agent_id,
            tags=draft.tags,
            retrieval_keys=draft.retrieval_keys,
            source=draft.source,
            url=draft.url,
            valid_at=draft.valid_at,
            idempotency_key=key,
            metadata=redact_all(dict(metadata)),
        )

    def _links(self, draft: MemoryDraft, item: Item) -> list[ItemLink]:
        relations = draft.relations
        if not relations:
            return []
        view = reach_of(self._caller.principal)
        found = self._engine.find([relation.target for relation in relations], view)
        for relation in relations:
            target = found.get(relation.target)
            if target is None:
                raise UnknownMemory(relation.target)
            if relation.relationship == "supersedes":
                self._check_supersedes(item, target)
        return [ItemLink(item.id, relation.relationship, relation.target) for relation in relations]

    def _check_supersedes(self, item: Item, target: Item) -> None:
        # Otherwise its readers would lose it for something that they cannot see.
        if item.scope != target.scope:
            raise InvalidMemory(f"{target.id} lies in another scope, and cannot be superseded here")
        if item.origin == "bus" and not self._owns(target):
            raise AccessDenied(f"Only its author may supersede {target.id}")

    def _check_cap(self, adding: int, now: float) -> None:
        caller = self._caller
        if caller.origin != "bus" or caller.author is None or not adding:
            return
        stored = self._engine.count_since(caller.principal.id, caller.author, now - 3600)
        if stored + adding > self._bus_hourly_cap:
            raise CapReached(caller.author, self._bus_hourly_cap)

    def _audit(self, tool: str, **details: Any) -> None:
        caller = self._caller
        self._engine.audit(
            AuditEntry(self._clock(), caller.principal.id, tool, details, caller.author)
        )


def _same(item: Item, known: Item) -> bool:
    """Whether an item is one that is stored already, come again."""
    return known == replace(
        item,
        id=known.id,
        created_at=known.created_at,
        updated_at=known.updated_at,
        metadata=known.metadata,
        seq=known.seq,
    )


def _answer(item: Item, *, created: bool, secrets_withheld: bool) -> Remembered:
    return Remembered(
        id=item.id,
        kind=item.kind,
        facet=facet_of(item.kind),
        project=item.project,
        created=created,
        secrets_withheld=secrets_withheld,
    )
