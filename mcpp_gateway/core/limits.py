"""The limits of a pod, as configured and as stated in every welcome."""

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
    history_messages: int = 10_000
    history_bytes: int = 67_108_864
    outbox_bytes: int = 8_388_608
    pod_outbox_bytes: int = 134_217_728
    max_connections_per_participant: int = 64
    max_connections_per_pod: int = 10_000
    max_filters_per_participant: int = 16
    max_filters_per_pod: int = 1_024
