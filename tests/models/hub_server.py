"""A small Hugging Face hub: the routes by which a model is looked up and downloaded, over one folder of models."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    models: Path
    asked: list[str]

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(f"{self.command} {path}")
        if path.startswith("/api/models/"):
            self._about(path.removeprefix("/api/models/"), with_body)
            return
        name, _, rest = path.strip("/").partition("/resolve/")
        file = self.models / name / rest.partition("/")[2]
        if file.is_file():
            content = file.read_bytes()
            digest = hashlib.sha1(content).hexdigest()
            self._send(200, content, with_body, {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT})
        else:
            self._missing("EntryNotFound" if (self.models / name).is_dir() else "RepoNotFound", with_body)

    def _about(self, asked: str, with_body: bool) -> None:
        name = "/".join(asked.split("/")[:2])
        folder = self.models / name
        if not folder.is_dir():
            self._missing("RepoNotFound", with_body)
            return
        files = sorted(file for file in folder.iterdir() if file.is_file())
        if "/tree/" in asked:
            listed: object = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": COMMIT} for file in files
            ]
        else:
            siblings = [{"rfilename": file.name, "size": file.stat().st_size} for file in files]
            listed = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": [], "downloads": 0}
        self._send(200, json.dumps(listed).encode(), with_body, {"Content-Type": "application/json"})

    def _missing(self, code: str, with_body: bool) -> None:
        self._send(404, b'{"error": "not found"}', with_body, {"X-Error-Code": code})

    def _send(self, status: int, content: bytes, with_body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(models: Path) -> Iterator[tuple[str, list[str]]]:
    """Its address, and what it has been asked."""
    asked: list[str] = []
    handler = type("ThisHub", (Hub,), {"models": models, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def cache(folder: Path, name: str, home: Path, commit: str = COMMIT) -> Path:
    """Put a model folder into a cache as huggingface_hub lays it out: blobs by their digest, a snapshot of links to
    them, a ref to the commit. Returns the snapshot."""
    repo = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir(exist_ok=True)
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs" / "main").write_text(commit)
    for file in folder.iterdir():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        (repo / "blobs" / digest).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{digest}")
    return snapshot
