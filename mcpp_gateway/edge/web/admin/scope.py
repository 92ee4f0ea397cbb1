"""What one admin may see and act on: the whole gateway, or the pods of its token (O-08)."""

from typing import TYPE_CHECKING

from mcpp_gateway.edge.admission.admins import Admin

if TYPE_CHECKING:
    from mcpp_gateway.core.pod import PodCore
    from mcpp_gateway.edge.connection import ServerConnection
    from mcpp_gateway.edge.server import Gateway


class BadRequestError(Exception):
    """A request that cannot be answered, and why."""


class NotAllowedError(Exception):
    """A request for what the token does not cover, and why."""


class Scope:
    """A gateway, as far as an admin's token covers it."""

    def __init__(self, gateway: "Gateway", admin: Admin) -> None:
        self.gateway = gateway
        self._allowed = admin.pods

    @property
    def is_whole(self) -> bool:
        """Whether the token is for all pods."""
        return self._allowed is None

    @property
    def pods(self) -> "list[PodCore]":
        """The pods that the token is for."""
        return [pod for name, pod in self.gateway.pods.items() if self._covers(name)]

    @property
    def connections(self) -> "list[ServerConnection]":
        """The open connections of these pods."""
        return [
            each
            for each in self.gateway.connections
            if each.peer is not None and not each.peer.closed and self._covers(each.peer.pod.name)
        ]

    def check_pod(self, name: str) -> None:
        """Raise NotAllowedError or BadRequestError, if the token is not for a pod or it is none."""
        if not self._covers(name):
            raise NotAllowedError("this token is not for that pod")
        if name not in self.gateway.pods:
            raise BadRequestError("no such pod")

    def check_whole(self, what: str) -> None:
        """Raise NotAllowedError if the token is not for all pods."""
        if not self.is_whole:
            raise NotAllowedError(f"{what} concerns all pods, and this token is for some")

    def _covers(self, pod: str) -> bool:
        return self._allowed is None or pod in self._allowed
