"""Metrics in Prometheus' text format, collected on request. Labels hold no ids (G-44)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from mcpp_gateway.edge.server import Gateway

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


def render(gateway: "Gateway") -> bytes:
    """Return the current metrics of a gateway."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_GatewayCollector(gateway))
    return generate_latest(registry)


class _GatewayCollector(Collector):
    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        gateway, hub = self._gateway, self._gateway.hub
        pods = list(gateway.pods.values())
        yield _gauge("connections", "Open connections.", len(gateway.connections))
        yield _gauge(
            "participants", "Participants present.", sum(len(p.participants) for p in pods)
        )
        yield _gauge("contexts", "Live contexts.", sum(len(p.tree) for p in pods))
        yield _gauge("outbox_bytes", "Bytes not yet sent to clients.", gateway.outbox_bytes())
        yield _counter("received", "Frames received from participants.", hub.received)
        yield _counter("delivered", "Envelopes written to connections.", hub.delivered)
        yield _counter("contexts_expired", "Contexts expired.", sum(p.expired for p in pods))
        yield _counter("ticks", "Batches written.", hub.ticks)
        yield _counter("tick_seconds", "Time spent writing batches.", hub.tick_seconds)
        if gateway.logs is not None:
            yield _gauge("log_bytes", "Bytes of the logs on disk.", gateway.logs.disk_bytes)
            unwritten = gateway.logs.unwritten_bytes
            yield _gauge("log_unwritten_bytes", "Bytes that wait for the disk.", unwritten)
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
        refused = CounterMetricFamily("mcpp_refused", "Envelopes refused.", labels=["code"])
        codes = {code for pod in pods for code in pod.refused}
        for code in sorted(codes):
            refused.add_metric([code], sum(pod.refused.get(code, 0) for pod in pods))
        yield refused


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"mcpp_{name}", help, value=value)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"mcpp_{name}", help, value=value)
