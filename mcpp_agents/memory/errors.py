"""Errors raised by the memory store.

The root is not called MemoryError because Python's builtin of that name means something else:

    MemoryStoreError
    ├── AccessDenied
    │   ├── OrganizationRequired   "Organization context required"
    │   └── ProjectDenied          "Project access denied: <id>"
    ├── InvalidMemory              an argument breaks a rule
    ├── UnknownMemory              no such item, or none that the caller may see
    ├── QuotaExceeded              a participant has used up its hourly quota
    └── StoreUnavailable           the file is locked, full or damaged
"""

from mcpp import McppError


class MemoryStoreError(McppError):
    """Root of all memory errors; its text is safe to show to the caller."""


class AccessDenied(MemoryStoreError):  # noqa: N818 - the name is kept in audit rows
    """The caller's credential does not allow the operation."""


class OrganizationRequired(AccessDenied):
    """The credential does not belong to an organization."""

    def __init__(self) -> None:
        super().__init__("Organization context required")


class ProjectDenied(AccessDenied):
    """The credential does not cover the project."""

    def __init__(self, project: str) -> None:
        self.project = project
        super().__init__(f"Project access denied: {project}")


class InvalidMemory(MemoryStoreError):  # noqa: N818 - the name is kept in audit rows
    """An argument breaks a rule of spec/memory.md."""


class UnknownMemory(MemoryStoreError):  # noqa: N818 - the name is kept in audit rows
    """No item with this id is visible; absent and invisible look alike to prevent probing."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"Unknown memory: {id}")


class QuotaExceeded(MemoryStoreError):  # noqa: N818 - the name is kept in audit rows
    """A participant has reached its hourly limit of items stored over the bus."""

    def __init__(self, author: str, cap: int) -> None:
        self.author, self.cap = author, cap
        super().__init__(f"{author} has stored {cap} memories this hour; try again later")


class StoreUnavailable(MemoryStoreError):  # noqa: N818 - the name is kept in audit rows
    """The file cannot be used now; the database's own error is the cause, for the log only."""

    def __init__(self, *, busy: bool) -> None:
        self.busy = busy
        super().__init__(
            "The memory is busy; try again later" if busy else "The memory cannot be used now"
        )
