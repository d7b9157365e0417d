"""OpenTelemetry: figures as metrics, sent to a collector by OTLP over HTTP."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from freerun.observe.loggers.base import Figures, LoggedRun, LoggedSample, Logger, Outcome
from freerun.observe.loggers.series import PREFIX, info_of, series_of

_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_EVERY_S = 10.0
_TIMEOUT_S = 5.0
"""How long a request may take. A collector that does not answer must not take all the time there is at the end."""


@dataclass(kw_only=True, eq=False)
class OpenTelemetry(Logger):
    library: ClassVar[str] = "opentelemetry.exporter.otlp.proto.http"
    extra: ClassVar[str] = "opentelemetry"
    replaces: ClassVar[bool] = True

    endpoint: str | None = None
    """Such as http://collector:4318/v1/metrics; empty: OTEL_EXPORTER_OTLP_ENDPOINT and its like, or localhost:4318."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of each request, besides those of OTEL_EXPORTER_OTLP_HEADERS."""
    every_s: float | None = None
    """How often the present figures are sent; empty: OTEL_METRIC_EXPORT_INTERVAL, or 10."""
    attributes: dict[str, str] = field(default_factory=dict)
    """More attributes for every point, such as {cluster: a}."""
    samples: int = 0
    """It has no tables."""

    def begin(self, run: LoggedRun) -> str:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        exporter = self._exporter(run)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=self._interval_ms)
        resource = Resource.create({"service.instance.id": run.name, **_service()})
        self._provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("freerun")
        self._gauges: dict[str, Any] = {}
        self._always = {"run": run.name, **self.attributes}
        info = self._meter.create_gauge(f"{PREFIX}run_info", description="The run and what tells it from others.")
        info.set(1, info_of(run.name, run.config) | self.attributes)
        return f"sends metrics to {exporter._endpoint}"

    def step(self, step: int, figures: Figures, samples: Sequence[LoggedSample]) -> None:
        for name, value in figures.items():
            series = series_of(name)
            if series.name not in self._gauges:
                gauge = self._meter.create_gauge(series.name, series.unit, series.help)
                self._gauges[series.name] = gauge
            self._gauges[series.name].set(value, self._always | series.labels)

    def evaluated(self, step: int, figures: Figures, so_far: Sequence[Figures]) -> None:
        self.step(step, figures, ())

    def end(self, outcome: Outcome) -> None:
        """What is there is sent once more."""
        self._provider.shutdown()

    @property
    def _interval_ms(self) -> float | None:
        if self.every_s is None and _INTERVAL in os.environ:
            return None
        return 1000 * (self.every_s or _EVERY_S)

    def _exporter(self, run: LoggedRun) -> Any:
        """One that says when it cannot send, the first time: the library only logs that."""
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult

        class Exporter(OTLPMetricExporter):
            has_failed = False

            def export(self, *arguments: Any, **options: Any) -> MetricExportResult:
                result = super().export(*arguments, **options)
                if result is not MetricExportResult.SUCCESS and not self.has_failed:
                    self.has_failed = True
                    run.tell(f"{self._endpoint} does not take the metrics; it is tried again, see the logger's log")
                return result

        given = {"OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT"} & os.environ.keys()
        timeout = None if given else _TIMEOUT_S
        return Exporter(endpoint=self.endpoint, headers=self.headers or None, timeout=timeout)


def _service() -> dict[str, str]:
    return {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "freerun"}
