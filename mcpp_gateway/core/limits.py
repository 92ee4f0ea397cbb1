"""The limits of a pod, as configured and as stated in every welcome, and of one participant."""

from typing import Final

import msgspec


class PodLimits(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """Limits of one pod. A rate of 0 means no limit."""

    max_message_bytes: int = 1_048_576
    max_context_depth: int = 8
    max_contexts_per_participant: int = 256
    max_contexts_per_pod: int = 10_000
    messages_per_second: float = 200
    burst: int = 400
    # Above one participant's rate, or one participant could use up a context's rate for all.
    context_messages_per_second: float = 400
    context_burst: int = 800
    context_idle_seconds: float = 300.0
    max_dormant_contexts: int = 100_000
    max_hops: int = 64  # chats in a row without a person; 0: no limit
    history_messages: int = 10_000
    history_bytes: int = 67_108_864
    outbox_bytes: int = 8_388_608
    pod_outbox_bytes: int = 134_217_728
    max_connections_per_participant: int = 64
    max_connections_per_pod: int = 10_000
    max_filters_per_participant: int = 16
    max_filters_per_pod: int = 1_024
    max_blob_bytes: int = 67_108_864  # of one blob
    max_blob_bytes_per_participant: int = 268_435_456  # of all that it has uploaded
    max_blob_bytes_per_pod: int = 1_073_741_824
    blob_grace_seconds: float = 3600.0  # that a blob is kept without an envelope that names it


class ParticipantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one participant that replace, or bound, those of its pod. None: not stated."""

    max_message_bytes: int | None = None
    max_contexts_per_participant: int | None = None
    messages_per_second: float | None = None
    burst: int | None = None
    max_connections_per_participant: int | None = None
    max_blob_bytes_per_participant: int | None = None

    def over(self, limits: PodLimits) -> PodLimits:
        """Return a pod's limits with the stated ones in place of them."""
        return msgspec.structs.replace(limits, **self._stated())

    def within(self, limits: PodLimits) -> PodLimits:
        """Return a pod's limits, each at most what is stated. A rate of 0 is no limit."""
        lower = {
            name: value
            for name, value in self._stated().items()
            if _is_lower(name, value, getattr(limits, name))
        }
        return msgspec.structs.replace(limits, **lower)

    def _stated(self) -> dict[str, float]:
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in found.items() if value is not None}


NO_LIMITS: Final = ParticipantLimits()


def _is_lower(name: str, value: float, other: float) -> bool:
    if name == "messages_per_second" and 0 in (value, other):
        return other == 0
    return value < other
