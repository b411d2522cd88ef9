"""The last step's numbers in Prometheus' text form, at http://host:port/metrics while the run lasts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.errors import ConfigError, Problem
from titanrl.report.alerts import Alert

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Prometheus"]


class _Shown(NamedTuple):
    step: int
    numbers: dict[str, float]
    raised: dict[int, dict[str, float]]
    """Step -> the alerts that it raised; of the step that is shown, and of one to come."""


class Prometheus:
    """An endpoint that serves gauges ``titanrl_<stage>_<quantity>{run="..."}``.

    Args:
        port: to listen on, at every address of the machine. run: value of the label.

    Raises:
        ConfigError: the port is taken.
    """

    def __init__(self, port: int, run: str) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._run = run
        # Another thread reads these: they are replaced together, never changed.
        self._now = _Shown(0, {}, {})
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, registry=registry)
        except OSError as error:
            text = f"cannot be listened on, got {port}: {error.strerror}; choose another."
            raise ConfigError(Problem("report", text, "prometheus_port")) from error

    def collect(self) -> Iterator[Metric]:
        """Yields each number of the last step and the alerts it raised; Prometheus' library asks."""
        from prometheus_client.core import GaugeMetricFamily

        now = self._now
        for name, value in (now.numbers | now.raised.get(now.step, {})).items():
            gauge = GaugeMetricFamily(re.sub(r"\W", "_", f"titanrl_{name}"), name, labels=["run"])
            gauge.add_metric([self._run], value)
            yield gauge

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        raised = {each: alerts for each, alerts in self._now.raised.items() if each >= step}
        self._now = _Shown(step, {"step": float(step), **metrics}, raised)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Serves no texts."""

    def alert(self, step: int, alert: Alert) -> None:
        """Keeps it for its step's numbers, which may come before it or after it."""
        raised = self._now.raised
        alerts = raised.get(step, {}) | {f"alert/{alert.name}": alert.value}
        self._now = self._now._replace(raised=raised | {step: alerts})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
