"""Prometheus: the figures of the last step and of the last evaluation, served on a port for it to scrape."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from freerun.core import ConfigError
from freerun.observe.loggers.base import Figures, LoggedRun, LoggedSample, Logger, Outcome
from freerun.observe.loggers.series import PREFIX, Series, info_of, series_of


@dataclass(kw_only=True, eq=False)
class Prometheus(Logger):
    library: ClassVar[str] = "prometheus_client"
    extra: ClassVar[str] = "prometheus"
    replaces: ClassVar[bool] = True

    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 is reached from other machines, by whoever can."""
    port: int = 9464
    """0 takes a free one."""
    labels: dict[str, str] = field(default_factory=dict)
    """More labels for every series, such as {cluster: a}."""
    samples: int = 0
    """It has no tables."""

    def begin(self, run: LoggedRun) -> str:
        from prometheus_client import CollectorRegistry, start_http_server

        self._info = info_of(run.name, run.config)
        self._lock = threading.Lock()
        self._step: Figures = {}
        self._evaluation: Figures = {}
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server: Any = start_http_server(self.port, self.host, registry)[0]
        except OSError as error:
            raise ConfigError(
                f"{self.host}:{self.port} cannot be listened on ({error.strerror}): set its port, or 0 for a free one"
            ) from None
        return f"serves http://{self.host}:{self._server.server_port}/metrics"

    def step(self, step: int, figures: Figures, samples: Sequence[LoggedSample]) -> None:
        with self._lock:
            self._step = figures

    def evaluated(self, step: int, figures: Figures, so_far: Sequence[Figures]) -> None:
        with self._lock:
            self._evaluation = figures

    def end(self, outcome: Outcome) -> None:
        self._server.shutdown()

    def collect(self) -> Iterator[Any]:
        """What the registry asks for when it is scraped, on the server's thread."""
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        with self._lock:
            figures = self._step | self._evaluation
        yield InfoMetricFamily(f"{PREFIX}run", "The run and what tells it from others.", self._info | self.labels)
        families: dict[str, Any] = {}
        always = {"run": self._info["run"], **self.labels}
        for name, value in figures.items():
            series = series_of(name)
            labels = always | series.labels
            if series.name not in families:
                families[series.name] = GaugeMetricFamily(series.name, _help(series), labels=list(labels))
            families[series.name].add_metric(list(labels.values()), value)
        yield from families.values()


def _help(series: Series) -> str:
    return f"{series.help} ({series.unit})" if series.unit else series.help
