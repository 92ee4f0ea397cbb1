"""What can go wrong in memory.

The root is not called MemoryError, because Python has one with another meaning:

    MemoryFault
    ├── AccessDenied
    │   ├── OrganizationRequired   "Organization context required"
    │   └── ProjectDenied          "Project access denied: <id>"
    ├── InvalidMemory              an argument breaks a rule
    ├── UnknownMemory              no such item, or none that the caller may see
    ├── CapReached                 a participant has had its share of this hour
    └── Unavailable                the file is locked, full or broken
"""

from mcpp import McppError


class MemoryFault(McppError):  # noqa: N818 - MemoryError is taken
    """The root: its text may be shown to the caller as it is."""

    audited = False  # whether the refusal has its row already


class AccessDenied(MemoryFault):
    """The caller's credential does not reach that far."""


class OrganizationRequired(AccessDenied):
    """The credential belongs to no organization."""

    def __init__(self) -> None:
        super().__init__("Organization context required")


class ProjectDenied(AccessDenied):
    """The credential does not cover the project."""

    def __init__(self, project: str) -> None:
        self.project = project
        super().__init__(f"Project access denied: {project}")


class InvalidMemory(MemoryFault):
    """An argument breaks a rule of spec/memory.md."""


class UnknownMemory(MemoryFault):
    """Absent and invisible look the same, or ids could be probed."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"Unknown memory: {id}")


class CapReached(MemoryFault):
    """A participant has stored as much from the bus as one hour allows."""

    def __init__(self, author: str, cap: int) -> None:
        self.author, self.cap = author, cap
        super().__init__(f"{author} has stored {cap} memories this hour; try again later")


class Unavailable(MemoryFault):
    """The file cannot be used now; what the database said is the cause, and for the log."""

    def __init__(self, *, busy: bool) -> None:
        self.busy = busy
        super().__init__(
            "The memory is busy; try again later" if busy else "The memory cannot be used now"
        )
