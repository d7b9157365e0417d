"""Reads back what each logger wrote, with its backend's own reader where it has one."""

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

_BLOCK = 32 * 1024
_HEADER = struct.Struct("<IHB")


class WandbFile:
    """An offline run's transaction log. This version of wandb has no reader in Python; the format is LevelDB's log of
    protobuf records."""

    def __init__(self, folder: Path) -> None:
        from wandb.proto.wandb_internal_pb2 import Record

        (self.folder,) = sorted(folder.glob("wandb/offline-run-*"))[-1:]
        (file,) = self.folder.glob("*.wandb")
        records: list[Any] = [Record.FromString(data) for data in _leveldb(file.read_bytes())]
        (self.run,) = [record.run for record in records if record.HasField("run")]
        self.history = [_items(record.history) for record in records if record.HasField("history")]
        self.config = {item.key: json.loads(item.value_json) for item in self.run.config.update}
        self.printed = (self.folder / "files" / "output.log").read_text()

    def steps(self, name: str) -> dict[int, Any]:
        """The figure by wandb's own step."""
        return {row["_step"]: row[name] for row in self.history if name in row}

    def table(self, name: str) -> dict[str, Any]:
        """The last one of that name."""
        latest = list(self.steps(f"{name}/path").values())[-1]
        read: dict[str, Any] = json.loads((self.folder / "files" / latest).read_text())
        return read


def _items(history: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in history.item}


def _leveldb(data: bytes) -> Iterator[bytes]:
    place, parts = 7, b""  # behind the file's own header
    while place + _HEADER.size <= len(data):
        if _BLOCK - place % _BLOCK < _HEADER.size:
            place += _BLOCK - place % _BLOCK
            continue
        _, length, kind = _HEADER.unpack_from(data, place)
        part = data[place + _HEADER.size : place + _HEADER.size + length]
        place += _HEADER.size + length
        match kind:
            case 1:
                yield part
            case 2 | 3:
                parts += part
            case 4:
                yield parts + part
                parts = b""


def scraped(address: str) -> dict[tuple[str, str], tuple[dict[str, str], float, str]]:
    """Labels, value and help by name and by what a family is taken apart by."""
    from prometheus_client.parser import text_string_to_metric_families

    with urlopen(address, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, sample.labels.get("reason", sample.labels.get("staleness", ""))): (
            *(sample.labels, sample.value, family.documentation),
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Collector:
    """A collector that takes OTLP over HTTP, and keeps the metrics that it is sent."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        self.requests: list[Any] = []
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                requests.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/metrics"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def resource(self) -> dict[str, str]:
        resource = self.requests[-1].resource_metrics[0].resource
        return {one.key: one.value.string_value for one in resource.attributes}

    @property
    def points(self) -> dict[tuple[str, str], tuple[dict[str, str], float, str]]:
        """Attributes, value and unit, as they were sent last, by name and by what a family is taken apart by."""
        found = {}
        for metric in self.requests[-1].resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.gauge.data_points:
                of = {one.key: one.value.string_value for one in point.attributes}
                value = point.as_double if point.HasField("as_double") else float(point.as_int)
                found[metric.name, of.get("reason", of.get("staleness", ""))] = of, value, metric.unit
        return found
