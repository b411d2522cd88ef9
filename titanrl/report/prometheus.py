"""Prometheus endpoint: the metrics of the last step at http://host:port/metrics during the run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.errors import ConfigError, Problem
from titanrl.report.alerts import Alert

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Prometheus"]


class _State(NamedTuple):
    """Metrics of the last step and recent alerts."""

    step: int
    metrics: dict[str, float]
    alerts: dict[int, dict[str, float]]
    """Step -> its alerts, of the last step and of a step whose metrics are still to come."""


class Prometheus:
    """An endpoint that serves gauges ``titanrl_<stage>_<quantity>{run="..."}``.

    Args:
        port: port to listen on, at every address of the machine.
        run: value of the label.

    Raises:
        ConfigError: the port is in use.
    """

    def __init__(self, port: int, run: str) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._run = run
        # Another thread reads the state, so it is replaced as a whole and never changed.
        self._state = _State(0, {}, {})
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, registry=registry)
        except OSError as error:
            text = f"must be a free port, got {port}: {error.strerror}; choose another one."
            raise ConfigError(Problem("report", text, "prometheus_port")) from error

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics and alerts of the last step; called by the Prometheus library."""
        from prometheus_client.core import GaugeMetricFamily

        state = self._state
        for name, value in (state.metrics | state.alerts.get(state.step, {})).items():
            gauge = GaugeMetricFamily(re.sub(r"\W", "_", f"titanrl_{name}"), name, labels=["run"])
            gauge.add_metric([self._run], value)
            yield gauge

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        alerts = {each: values for each, values in self._state.alerts.items() if each >= step}
        self._state = _State(step, {"step": float(step), **metrics}, alerts)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Ignore samples: Prometheus stores no text."""

    def alert(self, step: int, alert: Alert) -> None:
        """Store an alert with its step, whose metrics may arrive earlier or later."""
        alerts = self._state.alerts
        values = alerts.get(step, {}) | {f"alert/{alert.name}": alert.value}
        self._state = self._state._replace(alerts=alerts | {step: values})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
