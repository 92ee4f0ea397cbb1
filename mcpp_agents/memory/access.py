"""Access control: which scopes a principal may read and write.

Every item lies in exactly one scope: a project's, a principal's private one, or the diary that an
agent keeps for a principal. A scope is a string built here and opaque to the engine. A call names
the scopes its credential covers, and the engine's queries select by them, so no other row is ever
fetched. Scope names contain the organization, so two organizations can share a file.
"""

from dataclasses import dataclass
from typing import Final

from mcpp_agents.memory.errors import AccessDenied, OrganizationRequired, ProjectDenied

# Ids become parts of scope names, so they must not contain the separator.
_SEPARATOR = "\x1f"
LOCAL: Final = "local"  # the organization of the file's owner and of pods


@dataclass(frozen=True)
class Principal:
    """The identity behind a credential: a member of an organization, with its projects.

    `projects` of None means every project of the organization. A principal with a `home` stands
    for a group that sees every answer (a pod): it has no private items and no diaries, and items
    stored without a project go to its home project. In a call that only one participant sees the
    answer of, that participant is the `diarist`, whose diary is available.
    """

    id: str
    projects: frozenset[str] | None = frozenset()
    organization: str | None = LOCAL
    home: str | None = None
    diarist: str | None = None

    def __post_init__(self) -> None:
        parts = (self.id, self.organization or "", *(self.projects or ()))
        if any(_SEPARATOR in part for part in parts):
            raise ValueError("the parts of a principal must be printable text")
        if "@" in (self.organization or ""):
            raise ValueError("the name of an organization must not contain @")

    @property
    def account(self) -> str:
        """The name for which it stores items: `ID@ORGANIZATION`, or in `local` the id alone."""
        if self.organization == LOCAL and "@" not in self.id:
            return self.id
        return f"{self.id}@{self.organization or ''}"

    @classmethod
    def for_pod(cls, name: str, *, granted: frozenset[str] = frozenset()) -> "Principal":
        """Return the principal that all participants of a pod share."""
        home = f"pod:{name}"
        return cls(id=home, projects=granted | {home}, home=home)


# The library and the stdio server act as the owner of the file.
OWNER = Principal(id="owner", projects=None)


@dataclass(frozen=True)
class View:
    """The scopes that one call may see: exact names, and every name with one of the prefixes."""

    scopes: frozenset[str]
    prefixes: frozenset[str] = frozenset()
    domain: str | None = None


def scope_for(principal: Principal, *, project: str | None, agent: str | None) -> str:
    """Return the scope for a new item of the principal.

    Raises:
        AccessDenied: the credential does not cover the project, or has no diaries.
    """
    organization = _organization(principal)
    if principal.home is not None:
        if agent is None:
            project = project or principal.home
        elif agent != principal.diarist:
            raise AccessDenied("A diary is available to its own agent only, in a private call")
    if project is not None and principal.projects is not None and project not in principal.projects:
        raise ProjectDenied(project)
    if agent is not None:
        return _scope_name(organization, "diary", principal.id, agent, project or "")
    if project is not None:
        return _scope_name(organization, "project", project)
    return _scope_name(organization, "private", principal.id)


def view_of(
    principal: Principal,
    *,
    project: str | None = None,
    agent: str | None = None,
    domain: str | None = None,
) -> View:
    """Return the scopes of a pack: private items, the project (or all), the diary if given.

    Raises:
        AccessDenied: the credential does not cover the project, or has no diaries.
    """
    organization = _organization(principal)
    all_projects = project is None and principal.projects is None
    projects = {project} if project is not None else principal.projects or frozenset()
    scopes = {scope_for(principal, project=each, agent=None) for each in projects}
    prefixes = {_scope_name(organization, "project", "")} if all_projects else set()
    if principal.home is None:
        scopes.add(scope_for(principal, project=None, agent=None))
    if agent is not None:
        scopes.update(scope_for(principal, project=each, agent=agent) for each in (None, *projects))
        if all_projects:
            prefixes.add(_scope_name(organization, "diary", principal.id, agent, ""))
    return View(frozenset(scopes), frozenset(prefixes), domain)


def reach_of(principal: Principal) -> View:
    """Return every scope whose items the principal may name by id, including its diaries."""
    view = view_of(principal)
    if principal.home is not None and principal.diarist is None:
        return view
    own = () if principal.diarist is None else (principal.diarist,)
    diaries = _scope_name(_organization(principal), "diary", principal.id, *own, "")
    return View(view.scopes, view.prefixes | {diaries})


def organization_and_project(scope: str) -> tuple[str, str | None]:
    """Return the organization of a scope, and its project if all members of that may read it."""
    organization, kind, *rest = scope.split(_SEPARATOR)
    return organization, rest[0] if kind == "project" else None


def _scope_name(*parts: str) -> str:
    return _SEPARATOR.join(parts)


def _organization(principal: Principal) -> str:
    if not principal.organization:
        raise OrganizationRequired
    return principal.organization
