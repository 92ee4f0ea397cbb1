"""Metrics in Prometheus' text format, collected on request. No label names a participant (G-44)."""

import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

import mcpp
from mcpp.protocol.envelope import PROTOCOL
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.edge.web.admin.views import lag

if TYPE_CHECKING:
    from mcpp_gateway.edge.server import Gateway

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


def render(gateway: "Gateway") -> bytes:
    """Return the current metrics of a gateway."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_GatewayCollector(gateway))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _GatewayCollector(Collector):
    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        gateway, hub = self._gateway, self._gateway.hub
        pods = list(gateway.pods.values())
        yield _gauge("connections", "Open connections.", len(gateway.connections))
        yield from self._of_pods(pods)
        yield _gauge("outbox_bytes", "Bytes not yet sent to clients.", gateway.outbox_bytes())
        yield from self._traffic(pods)
        yield HistogramMetricFamily(
            "mcpp_delivery_seconds",
            "Time from the arrival of a text to its last write; a sample of each tick.",
            buckets=hub.latency.buckets(),
            sum_value=hub.latency.seconds,
        )
        yield from self._of_process()
        yield _counter(
            "live_dropped", "Live parts not written, for lack of room.", hub.live_dropped
        )
        yield _counter("ticks", "Batches written.", hub.ticks)
        yield _counter("tick_seconds", "Time spent writing batches.", hub.tick_seconds)
        if gateway.logs is not None:
            yield _gauge("log_bytes", "Bytes of the logs on disk.", gateway.logs.disk_bytes)
            unwritten = gateway.logs.unwritten_bytes
            yield _gauge("log_unwritten_bytes", "Bytes that wait for the disk.", unwritten)
            seconds, syncs = gateway.logs.sync_times
            yield SummaryMetricFamily(
                "mcpp_log_sync_seconds",
                "Time of a sync of the log.",
                count_value=syncs,
                sum_value=seconds,
            )
            yield _gauge("log_accepting", "Whether there is space left.", gateway.has_space)
        if gateway.cluster is not None:
            links = list(gateway.cluster.links)
            leads = sum(link.pod.is_leader for link in links)
            yield _gauge("cluster_reachable", "Whether the log answers.", gateway.is_log_reachable)
            yield _gauge("cluster_leads", "Pods that this gateway leads.", leads)
            yield _gauge("cluster_lag", "Records not yet applied.", sum(e.lag for e in links))
            waiting = gateway.cluster.waiting_bytes
            yield _gauge("cluster_waiting_bytes", "Bytes that wait for the log.", waiting)
            void = sum(link.pod.void for link in links)
            yield _counter("cluster_void", "Records that did not count.", void)

    def _of_pods(self, pods: list[PodCore]) -> Iterator[Metric]:
        names = {
            "participants": "Participants present.",
            "contexts": "Live contexts.",
            "lag_entries": "About how many entries the reader furthest behind has yet to be sent.",
        }
        gauges = {
            name: GaugeMetricFamily(f"mcpp_{name}", help, labels=["pod"])
            for name, help in names.items()
        }
        entries = CounterMetricFamily("mcpp_log_entries", "Entries of the log.", labels=["pod"])
        expired = CounterMetricFamily("mcpp_contexts_expired", "Contexts expired.", labels=["pod"])
        refused = CounterMetricFamily("mcpp_refused", "Envelopes refused.", labels=["pod", "code"])
        behind = dict.fromkeys((pod.name for pod in pods), 0)
        for connection in self._gateway.connections:
            if connection.peer is not None:
                name = connection.peer.pod.name
                behind[name] = max(behind.get(name, 0), lag(connection))
        for pod in pods:
            gauges["participants"].add_metric([pod.name], len(pod.participants))
            gauges["contexts"].add_metric([pod.name], len(pod.tree))
            gauges["lag_entries"].add_metric([pod.name], behind[pod.name])
            entries.add_metric([pod.name], pod.journal.end)
            expired.add_metric([pod.name], pod.expired)
            for code, count in sorted(pod.refused.items()):
                refused.add_metric([pod.name, code], count)
        yield from (*gauges.values(), entries, expired, refused)

    def _traffic(self, pods: list[PodCore]) -> Iterator[Metric]:
        names = {
            "received": "Texts received from participants.",
            "delivered": "Envelopes written to connections.",
            "received_bytes": "Bytes received from participants.",
            "sent_bytes": "Bytes written to connections.",
        }
        for name, help in names.items():
            counter = CounterMetricFamily(f"mcpp_{name}", help, labels=["pod"])
            for pod in pods:
                counter.add_metric([pod.name], getattr(self._gateway.hub.traffic[pod], name))
            yield counter

    def _of_process(self) -> Iterator[Metric]:
        failed = CounterMetricFamily(
            "mcpp_logins_failed", "Tokens that were refused.", labels=["status"]
        )
        for status, count in self._gateway.admission.failures.items():
            failed.add_metric([str(status)], count)
        yield failed
        ages = GaugeMetricFamily(
            "mcpp_issuer_keys_age_seconds",
            "Time since an issuer's keys were last read; infinite if never.",
            labels=["issuer"],
        )
        if self._gateway.tokens is not None:
            for issuer, age in self._gateway.tokens.key_ages().items():
                ages.add_metric([issuer], age)
        yield ages
        build = GaugeMetricFamily(
            "mcpp_build_info", "Versions.", labels=["version", "python", "protocol"]
        )
        build.add_metric([mcpp.__version__, platform.python_version(), PROTOCOL], 1)
        yield build


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"mcpp_{name}", help, value=value)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"mcpp_{name}", help, value=value)
