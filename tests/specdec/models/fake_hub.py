"""A model hub on this machine: as much of the Hugging Face hub's HTTP interface as fetching a model needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

COMMIT = "c" * 40


class _Handler(BaseHTTPRequestHandler):
    repositories: ClassVar[dict[str, dict[str, bytes]]]
    refusals: ClassVar[dict[str, tuple[int, str]]]
    fetched: ClassVar[list[str]]

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts
        repo_id, rest = "/".join(parts[:2]), parts[2:]
        status, code = self.refusals.get(repo_id, (404, "RepoNotFound"))
        if repo_id not in self.repositories:
            self._send(status, b"{}", {"X-Error-Code": code}, with_body=with_body)
            return
        files = self.repositories[repo_id]
        if rest[0] == "revision":
            self._send_json({"id": repo_id, "sha": COMMIT, "siblings": []})
        elif rest[0] == "tree":
            self._send_json(
                [
                    {"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
                    for name, content in files.items()
                ]
            )
        elif (name := "/".join(rest[2:])) in files:
            if with_body:
                self.fetched.append(name)
            headers = {"ETag": f'"{_etag(files[name])}"', "X-Repo-Commit": COMMIT}
            self._send(200, files[name], headers, with_body=with_body)
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, with_body=with_body)

    def _send_json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"}, with_body=True)

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests are looked at through `fetched`."""


class FakeHub:
    """What the hub has, by repository; `refusals` are the status and error code of repositories that it withholds."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.refusals: dict[str, tuple[int, str]] = {}
        self.fetched: list[str] = []
        """Names of the files whose content went out."""
        self.endpoint = ""


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub that listens on a free port until the end."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), vars(hub))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
