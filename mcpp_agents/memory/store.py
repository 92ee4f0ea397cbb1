"""The memory store: `remember`, `context` and `forget` for one caller, over any engine."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from math import inf
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from mcpp.cli.extras import missing_extra
from mcpp_agents.memory.access import Principal, View, reach_of, scope_for
from mcpp_agents.memory.auditing import NOWHERE, CallAudit, LogPlace, StoreCaller
from mcpp_agents.memory.drafts import answer_for, is_repeated, item_from_draft
from mcpp_agents.memory.errors import (
    AccessDenied,
    InvalidMemory,
    MemoryStoreError,
    QuotaExceeded,
    UnknownMemory,
)
from mcpp_agents.memory.pack import ContextPack, Forgotten, Remembered
from mcpp_agents.memory.packing.plan import SynthesisPlan, plan_from
from mcpp_agents.memory.packing.token_budget import clamped_budget
from mcpp_agents.memory.requests import (
    DraftFields,
    ForgetRequest,
    LogErasure,
    MemoryDraft,
    PackFields,
    PackRequest,
    PlanFields,
    PlanRequest,
    ScopeFields,
    digest_key,
    read,
    to_seconds,
)
from mcpp_agents.memory.search.compiler import Compilation, Compiler
from mcpp_agents.memory.search.embedding import Embedder, load
from mcpp_agents.memory.storage.engine import AuditEntry, Engine, Item, ItemLink
from mcpp_agents.memory.storage.postgres.address import is_database
from mcpp_agents.memory.storage.sqlite import SqliteEngine
from mcpp_agents.memory.vocabulary import DEFAULT_KIND

if TYPE_CHECKING:
    from mcpp_agents.memory.search.embedding_worker import EmbeddingWorker

# The number of items that one participant may add in an hour over the bus (M-35).
BUS_HOURLY_CAP: Final = 120
_QUOTA_SECONDS: Final = 3600
# Items per write, about 0.2 s: other processes get their turn in between (M-01).
BATCH: Final = 1_000
_MAX_DIARY: Final = 10_000
TOOL_NAMES: Final = ("context", "remember", "synthesis_plan", "forget")

# The library and the stdio server act as the owner of the file.
_OWNER_CALLER: Final = StoreCaller()

Answer = ContextPack | SynthesisPlan | Remembered | Forgotten


class MemoryStore:
    """The memories in one database, as one caller may use them.

    `acting_as` returns the same store for another caller; only the first one, from `open`, closes
    it. Every operation below leaves one audit row; only the private methods are not audited.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        caller: StoreCaller = _OWNER_CALLER,
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
        location: str | PathLike[str],
        *,
        embedder: Embedder | str | None = "auto",
        clock: Callable[[], float] = time.time,
        bus_hourly_cap: int = BUS_HOURLY_CAP,
    ) -> Self:
        """Open or create a memory file, or a database, as its owner.

        Args:
            location: the path of a file, or the URL of a database: `postgresql://...`.
            embedder: an embedder or its name; None searches by words alone, `auto` takes the best
                one that is installed.
            clock: returns seconds since 1970.
            bus_hourly_cap: the number of memories that a participant may add in an hour over a pod.

        Raises:
            MemoryStoreError: the file is not a memory file, the database cannot be used, or the
                embedder or the database's driver is not installed.
        """
        chosen = load(embedder) if isinstance(embedder, str) else embedder
        engine = _open_engine(fspath(location))
        background = None
        if chosen is not None:
            from mcpp_agents.memory.search.embedding_worker import EmbeddingWorker

            background = EmbeddingWorker(engine, chosen)
        return cls(engine, background=background, clock=clock, bus_hourly_cap=bus_hourly_cap)

    def acting_as(
        self,
        principal: Principal,
        *,
        author: str | None = None,
        origin: str = "direct",
        place: LogPlace = NOWHERE,
    ) -> "MemoryStore":
        """Return the same store for another caller; the arguments are those of `StoreCaller`."""
        return MemoryStore(
            self._engine,
            caller=StoreCaller(principal, author, origin, place),
            background=self._background,
            clock=self._clock,
            bus_hourly_cap=self._bus_hourly_cap,
        )

    def close(self) -> None:
        """Stop embedding and close the file; the next process to open it embeds the rest."""
        if self._background:
            self._background.close()
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Operations, each audited once

    def remember(
        self, title: str, content: str, kind: str = DEFAULT_KIND, **fields: Unpack[DraftFields]
    ) -> Remembered:
        """Store one memory; the other fields are those of `MemoryDraft`.

        Raises:
            MemoryStoreError: a field breaks a rule, or the caller may not write there.
        """
        with self._audited("remember") as audit:
            arguments = {"title": title, "content": content, "kind": kind, **fields}
            return self._remember([read(arguments, MemoryDraft)], None, audit)[0]

    def remember_many(
        self, drafts: Iterable[MemoryDraft], *, metadata: Mapping[str, Any] | None = None
    ) -> list[Remembered]:
        """Store many memories, all or none of each `BATCH`; they are searchable at once.

        Each batch leaves an audit row of its own.

        Args:
            metadata: facts that the program itself adds to each item, such as a lineage. Only
                with them may a source be an address on the bus.
        """
        with self._audited("remember") as audit:
            return self._remember(list(drafts), metadata, audit)

    def replace(self, draft: MemoryDraft, *, metadata: Mapping[str, Any]) -> Remembered:
        """Store a memory in the place of the caller's one with the same key, if there is one."""
        with self._audited("remember") as audit:
            return self._remember([draft], metadata, audit, replacing=True)[0]

    def context(self, goal: str, **fields: Unpack[PackFields]) -> ContextPack:
        """Compile a context pack for a goal; the other fields are those of `PackRequest`.

        Raises:
            MemoryStoreError: a field breaks a rule, or the caller may not read there.
        """
        with self._audited("context") as audit:
            return self._compile(read({"goal": goal, **fields}, PackRequest), audit).pack

    def compile(self, request: PackRequest) -> ContextPack:
        """Compile a context pack for a request object."""
        with self._audited("context") as audit:
            return self._compile(request, audit).pack

    def synthesis_plan(self, goal: str, **fields: Unpack[PlanFields]) -> SynthesisPlan:
        """Outline an artifact from what is remembered; the other fields are those of `PlanRequest`.

        Raises:
            MemoryStoreError: a field breaks a rule, or the caller may not read there.
        """
        with self._audited("synthesis_plan") as audit:
            return self._plan(read({"goal": goal, **fields}, PlanRequest), audit)

    def forget(self, id: str) -> Forgotten:
        """Erase a memory, its relations and its words in the index; restore what it superseded.

        Raises:
            UnknownMemory: there is none that the caller may see.
            AccessDenied: it belongs to another caller.
        """
        with self._audited("forget") as audit:
            return self._forget(read({"id": id}, ForgetRequest), audit)

    def erase_recorded(self, erasures: Sequence[LogErasure]) -> int:
        """Erase what was recorded of erased entries of the caller's log; return how many items."""
        with self._audited("forget") as audit, self._engine.writing():
            erased = [
                item
                for item in self._engine.stored_by(self._caller.principal.account)
                if item.is_from_pod and any(_covers(erasure, item) for erasure in erasures)
            ]
            for item in erased:
                self._engine.remove(item.seq)
            audit.succeeded(ids=[item.id for item in erased])
        return len(erased)

    def call(self, tool: str, arguments: object) -> Answer:
        """Call one of the tools in `TOOL_NAMES` with unchecked arguments.

        Raises:
            MemoryStoreError: there is no such tool, an argument breaks a rule, or access is denied.
        """
        with self._audited(tool if tool in TOOL_NAMES else "unknown") as audit:
            match tool:
                case "context":
                    return self._compile(read(arguments, PackRequest), audit).pack
                case "remember":
                    return self._remember([read(arguments, MemoryDraft)], None, audit)[0]
                case "synthesis_plan":
                    return self._plan(read(arguments, PlanRequest), audit)
                case "forget":
                    return self._forget(read(arguments, ForgetRequest), audit)
            raise InvalidMemory(f"Unknown tool: {tool}")

    # Queries, not audited

    def search(
        self, text: str, *, limit: int = 100, **fields: Unpack[ScopeFields]
    ) -> list[tuple[str, float]]:
        """Return ids by plain relevance, without intents, ages and facets, for evaluation.

        The relevance is relative to the best. The other fields are project, agent_id and domain.
        """
        request = read({"goal": text, **fields}, PackRequest)
        request.check()
        return self._compiler().rank(request.redacted(), self._caller.principal, limit)

    def audit_entries(self, last: int = 20) -> list[AuditEntry]:
        """Return the latest audit entries, oldest first.

        Raises:
            AccessDenied: the caller is not the file's owner.
        """
        if self._caller != _OWNER_CALLER:
            raise AccessDenied("Only the file's owner may read the audit")
        return self._engine.audit_entries(last)

    def exists(self, id: str) -> bool:
        """Return whether the caller may refer to a memory with this id."""
        return bool(self._engine.find([id], reach_of(self._caller.principal)))

    def stored_under(self, idempotency_key: str) -> Item | None:
        """Return the item that the caller has stored under this key."""
        return self._find_by_key(digest_key(idempotency_key))

    def diary(self, agent_id: str, *, kind: str) -> list[Item]:
        """Return the newest items of a kind in a diary, up to 10,000, outside of any project.

        Raises:
            AccessDenied: the caller has no diaries.
        """
        view = View(frozenset({scope_for(self._caller.principal, project=None, agent=agent_id)}))
        with self._engine.reading():
            newest = [outline.seq for outline in self._engine.newest(view, (kind,), _MAX_DIARY)]
            return list(self._engine.fetch(newest, view).values())

    def opted_out(self) -> frozenset[str]:
        """Return the contexts of the caller, a pod, that have opted out of memory (M-33)."""
        return self._engine.opted_out(self._caller.principal.account)

    def opt_out(self, contexts: AbstractSet[str]) -> None:
        """Replace the set of contexts that have opted out."""
        principal = self._caller.principal.account
        with self._engine.writing():
            known = self._engine.opted_out(principal)
            self._engine.opt_out(principal, contexts - known, known - contexts)

    def embed_pending(self, limit: int | None = None) -> int:
        """Embed items without a vector now, or about `limit` of them; return how many."""
        return self._background.drain(limit) if self._background else 0

    # Implementation: no public operation is called from here

    @contextmanager
    def _audited(self, tool: str) -> Iterator[CallAudit]:
        audit = CallAudit(self._engine, self._caller, self._clock, tool)
        with audit.refusals():
            yield audit

    def _remember(
        self,
        drafts: Sequence[MemoryDraft],
        metadata: Mapping[str, Any] | None,
        audit: CallAudit,
        *,
        replacing: bool = False,
    ) -> list[Remembered]:
        for draft in drafts:
            draft.check()
            if metadata is None:
                draft.check_source()
        batches = (drafts[start : start + BATCH] for start in range(0, len(drafts), BATCH))
        return [
            answer
            for batch in batches
            for answer in self._write(batch, metadata or {}, audit, replacing=replacing)
        ]

    def _write(
        self,
        drafts: Sequence[MemoryDraft],
        metadata: Mapping[str, Any],
        audit: CallAudit,
        *,
        replacing: bool,
    ) -> list[Remembered]:
        """Store one batch in one write: all or none."""
        now = self._clock()
        answers: list[Remembered] = []
        items: list[Item] = []
        links: list[ItemLink] = []
        by_key: dict[str, Item] = {}
        replaced: list[str] = []
        with self._engine.writing():
            for draft in drafts:
                key = draft.idempotency_key and digest_key(draft.idempotency_key)
                stored = by_key.get(key) or self._find_by_key(key) if key else None
                if replacing and stored is not None:
                    self._engine.remove(stored.seq)
                    replaced.append(stored.id)
                    stored = None
                redacted = draft.redacted()
                item = item_from_draft(redacted, self._caller, key=key, now=now, metadata=metadata)
                if stored is None:
                    links += self._links(redacted, item)
                    items.append(item)
                    if key:
                        by_key[key] = item
                    withheld = redacted != draft
                    answers.append(answer_for(item, created=True, secrets_withheld=withheld))
                elif not metadata and not is_repeated(item, stored):
                    raise InvalidMemory(f"idempotency_key was given to another memory: {stored.id}")
                else:
                    answers.append(answer_for(stored, created=False, secrets_withheld=False))
            self._charge_quota(len(items), now)
            self._engine.add(items, links)
            audit.succeeded(
                ids=[answer.id for answer in answers],
                lengths=[len(draft.content) for draft in drafts],
                created=len(items),
                **({"replaced": replaced} if replaced else {}),
            )
        if self._background and items:
            self._background.wake()
        return answers

    def _compile(self, request: PackRequest, audit: CallAudit) -> Compilation:
        request.check()
        request = request.redacted()
        audit.add_details(
            goal_length=len(request.goal),
            intent=request.intent,
            layer=request.layer,
            project=request.project,
            agent_id=request.agent_id,
        )
        compiled = self._compiler().compile(request, self._caller.principal, self._clock())
        audit.succeeded(ids=[item.id for item in compiled.pack.items])
        return compiled

    def _plan(self, request: PlanRequest, audit: CallAudit) -> SynthesisPlan:
        compiled = self._compile(request.as_pack_request(), audit)
        return plan_from(compiled, budget=clamped_budget(request.markdown_token_budget))

    def _forget(self, request: ForgetRequest, audit: CallAudit) -> Forgotten:
        with self._engine.writing():
            caller = self._caller
            # M-07: the owner could erase the file, and may erase any part of it.
            view = None if caller == _OWNER_CALLER else reach_of(caller.principal)
            item = self._engine.find([request.id], view).get(request.id)
            if item is None:
                raise UnknownMemory(request.id)
            if not self._is_author_of(item) and caller != _OWNER_CALLER:
                raise AccessDenied(f"Only its author may forget {request.id}")
            self._engine.remove(item.seq)
            audit.succeeded(ids=[item.id])
        return Forgotten(id=item.id)

    def _is_author_of(self, item: Item) -> bool:
        # The same name in another pod is another participant.
        caller = self._caller
        return (item.principal, item.author) == (caller.principal.account, caller.author)

    def _compiler(self) -> Compiler:
        return Compiler(self._engine, self._background.embedder if self._background else None)

    def _find_by_key(self, key: str) -> Item | None:
        return self._engine.find_by_key(self._caller.principal.account, self._caller.author, key)

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
        # Otherwise readers of the target would lose it to an item they cannot see.
        if item.scope != target.scope:
            raise InvalidMemory(f"{target.id} lies in another scope, and cannot be superseded here")
        if item.origin == "bus" and not self._is_author_of(target):
            raise AccessDenied(f"Only its author may supersede {target.id}")

    def _charge_quota(self, items: int, now: float) -> None:
        """Charge the author of items from the bus, inside the write that adds them (M-35)."""
        principal, author = self._caller.principal.account, self._caller.author
        if self._caller.origin != "bus" or author is None or not items:
            return
        expired_at = now - _QUOTA_SECONDS
        used = self._engine.quota_used(principal, author, expired_at)
        if used + items > self._bus_hourly_cap:
            raise QuotaExceeded(author, self._bus_hourly_cap)
        self._engine.charge_quota(principal, author, items=items, at=now, expired_at=expired_at)


def _covers(erasure: LogErasure, item: Item) -> bool:
    """Return whether an item may contain what was erased from the log of its pod (H-14)."""
    if item.metadata.get("last_erasure", -inf) >= erasure.at:
        return False
    if erasure.before is not None and _began(item) >= erasure.before:
        return False
    if erasure.context is not None and erasure.context not in item.metadata.get("lineage", ()):
        return False
    speakers = (item.author, *item.metadata.get("participants", ()))
    return erasure.participant is None or erasure.participant in speakers


def _began(item: Item) -> float:
    """Return the time of the earliest text in an item that was stored in a pod.

    A sender's clock may be ahead, but nothing is stored before it was received.
    """
    if not item.is_about_envelope:  # stored by a request; `valid_at` is a time that it speaks of
        return item.created_at
    began = item.metadata.get("began")
    return min(item.created_at, item.since, to_seconds(began) if began else item.since)


def _open_engine(location: str) -> Engine:
    if not is_database(location):
        return SqliteEngine(location)
    try:
        from mcpp_agents.memory.storage.postgres.postgres import PostgresEngine
    except ModuleNotFoundError as error:
        if missing := missing_extra(error, "postgres"):
            raise MemoryStoreError(f"A database {missing}") from None
        raise
    return PostgresEngine(location)
