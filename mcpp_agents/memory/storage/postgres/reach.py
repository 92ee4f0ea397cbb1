"""Which scopes a view shows: their ids, their size, and the conditions on tables."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mcpp_agents.memory.access import View
from mcpp_agents.memory.storage.postgres.database import ALL, PostgresDatabase, sql_array


@dataclass(frozen=True)
class Reach:
    """The scopes of a view that exist, and how much they contain."""

    counts: Mapping[int, int]  # current items of each scope, of all domains
    domain: str | None
    visible: int  # current items of the view, and their tokens
    tokens: int
    first: int  # the numbers of the first and the last current item
    last: int

    @cached_property
    def scopes(self) -> str:
        """The ids of the scopes, as an array in SQL's notation."""
        return sql_array(self.counts)

    @property
    def items(self) -> int:
        """The number of current items in the scopes, of all domains."""
        return sum(self.counts.values())

    def after(self, fraction: float) -> int:
        """Return a number after which about this fraction of the items follows."""
        return self.last - round((self.last - self.first) * fraction)

    def within(self, scopes: Iterable[int]) -> "Reach":
        """Return the reach of some of the scopes; what is known of the view stays."""
        return replace(self, counts={scope: self.counts[scope] for scope in scopes})

    def condition(self, table: str, *, by_scope: bool = False) -> tuple[str, list[Any]]:
        """Return the condition on a table with the columns `scope` and `domain`.

        Args:
            by_scope: an index finds the rows by their scope. Otherwise the scopes of rows that are
                found in another way are looked up in a hash table.
        """
        # "IS TRUE" keeps this from becoming a join, which could compare each row with all scopes.
        where = f" AND ({table}.scope IN (SELECT unnest(?::int[]))) IS TRUE"
        if by_scope:
            where = f" AND {table}.scope = ANY (?)"
        values: list[Any] = [self.scopes]
        if self.domain is not None:
            return f"{where} AND {table}.domain = ?", [*values, self.domain]
        return where, values

    def posting_condition(self) -> tuple[str, list[Any]]:
        """Return the condition on `posting p`, which has no domain."""
        where, values = " AND p.scope = ANY (?)", [self.scopes]
        if self.domain is not None:
            inside = "EXISTS (SELECT FROM memory m WHERE m.seq = p.seq AND m.domain = ?)"
            return f"{where} AND {inside}", [*values, self.domain]
        return where, values


def reach_of_view(database: PostgresDatabase, view: View) -> Reach:
    """Return the reach of a view, and let the current transaction see no more than that."""
    known: dict[View, Reach] = database.facts
    if view not in known:
        database.see(ALL)
        rows = database.all(
            "SELECT id, items, tokens, first, last FROM scope WHERE name = ANY (?)"
            " UNION ALL SELECT s.id, s.items, s.tokens, s.first, s.last"
            " FROM unnest(?::text[]) AS prefix JOIN scope s ON starts_with(s.name, prefix)",
            sorted(view.scopes),
            sorted(view.prefixes),
        )
        rows = sorted(set(rows))  # a name may also have one of the prefixes
        counts = {row[0]: int(row[1]) for row in rows}
        domain = None if view.domain is None else view.domain.casefold()
        sizes = [row[1:] for row in rows]
        if domain is not None:
            sizes = database.all(
                "SELECT items, tokens, first, last FROM scope_domain"
                " WHERE domain = ? AND scope = ANY (?)",
                domain,
                sql_array(counts),
            )
        known[view] = Reach(
            counts,
            domain,
            visible=sum(int(items) for items, *_ in sizes),
            tokens=sum(int(tokens) for _, tokens, *_ in sizes),
            first=min((size[2] for size in sizes if size[0]), default=0),
            last=max((size[3] for size in sizes if size[0]), default=0),
        )
    reach = known[view]
    database.see(reach.scopes)
    return reach
