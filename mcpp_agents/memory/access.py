"""Who may read and write what.

Every item lies in exactly one scope, a string made here and opaque to the engine: a project's, a
principal's private one, or the diary that an agent keeps for a principal. A call names the scopes
that its credential reaches, and the engine's queries select by them, so that nothing else is ever
fetched. Scopes carry their organization, so two of them can share a file without meeting.
"""

from dataclasses import dataclass

from mcpp_agents.memory.errors import AccessDenied, OrganizationRequired, ProjectDenied

# Ids become parts of scope names, so the separator may not occur in them.
_SEPARATOR = "\x1f"


@dataclass(frozen=True)
class Principal:
    """Whom a credential stands for: one of an organization, with its projects.

    `projects` of None means every project of the organization. A principal with `home` speaks for
    a group that sees every answer (a pod): it has no private items and no diaries, and what it
    stores without naming a project lies in its home project.
    """

    id: str
    projects: frozenset[str] | None = frozenset()
    organization: str | None = "local"
    home: str | None = None

    def __post_init__(self) -> None:
        parts = (self.id, self.organization or "", *(self.projects or ()))
        if any(_SEPARATOR in part for part in parts):
            raise ValueError("the parts of a principal are printable text")

    @classmethod
    def for_pod(cls, name: str, *, granted: frozenset[str] = frozenset()) -> "Principal":
        """The principal of everything said in a pod."""
        home = f"pod:{name}"
        return cls(id=home, projects=granted | {home}, home=home)


# The library and stdio act as whoever owns the file.
OWNER = Principal(id="owner", projects=None)


@dataclass(frozen=True)
class View:
    """What one call may see: exact scopes, and every scope that begins with a prefix."""

    scopes: frozenset[str]
    prefixes: frozenset[str] = frozenset()
    domain: str | None = None


def scope_for(principal: Principal, *, project: str | None, agent: str | None) -> str:
    """The scope in which the principal's new item lies.

    Raises:
        AccessDenied: the credential does not cover the project, or reaches no diaries.
    """
    organization = _organization(principal)
    if principal.home is not None:
        if agent is not None:
            raise AccessDenied("No diaries where everyone reads along")
        project = project or principal.home
    if project is not None and principal.projects is not None and project not in principal.projects:
        raise ProjectDenied(project)
    if agent is not None:
        return _join(organization, "diary", principal.id, agent, project or "")
    if project is not None:
        return _join(organization, "project", project)
    return _join(organization, "private", principal.id)


def view_of(
    principal: Principal,
    *,
    project: str | None = None,
    agent: str | None = None,
    domain: str | None = None,
) -> View:
    """What the principal sees: a project (else all of its own), its private items, a diary.

    Raises:
        AccessDenied: the credential does not cover the project, or reaches no diaries.
    """
    organization = _organization(principal)
    whole = project is None and principal.projects is None
    projects = {project} if project is not None else principal.projects or frozenset()
    scopes = {scope_for(principal, project=each, agent=None) for each in projects}
    prefixes = {_join(organization, "project", "")} if whole else set()
    if principal.home is None:
        scopes.add(scope_for(principal, project=None, agent=None))
    if agent is not None:
        scopes.update(scope_for(principal, project=each, agent=agent) for each in (None, *projects))
        if whole:
            prefixes.add(_join(organization, "diary", principal.id, agent, ""))
    return View(frozenset(scopes), frozenset(prefixes), domain)


def reach_of(principal: Principal) -> View:
    """Everything the principal can name by an id: all it sees, and all of its diaries."""
    view = view_of(principal)
    if principal.home is not None:
        return view
    diaries = _join(_organization(principal), "diary", principal.id, "")
    return View(view.scopes, view.prefixes | {diaries})


def _join(*parts: str) -> str:
    return _SEPARATOR.join(parts)


def _organization(principal: Principal) -> str:
    if not principal.organization:
        raise OrganizationRequired
    return principal.organization
