"""A web server on loopback that serves files of a folder, and fails, stalls or lies as it is told to."""

import contextlib
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECE = b"a line that comes again and again\n" * 2000
ENOUGH = 300_000_000
"""Bytes after which an endless file ends after all: who reads so many has no bound."""


class ShardServer:
    """`faults` maps a path to a list of what goes wrong with the next GETs of it, one each: a status such as 503,
    "stall", "cut" (half of the bytes, then the end), "short" (whole by its header, but other bytes are missing) or
    "long", or "endless". `asked` counts GETs, and `sent` the bytes of those without an end. `headers` maps a path to
    what it is answered with instead: a status and headers; without a length where it is endless.
    """

    def __init__(self, folder, faults=None):
        self.folder, self.faults, self.asked, self.sent, self.headers = folder, faults or {}, Counter(), 0, {}
        self.released = threading.Event()

    @contextlib.contextmanager
    def serve(self):
        handler = type("Handler", (ShardHandler,), {"shards": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            self.released.set()
            server.shutdown()
            server.server_close()
            thread.join()


class ShardHandler(BaseHTTPRequestHandler):
    shards: ShardServer

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.shards.asked[self.path] += 1
        left = self.shards.faults.get(self.path, [])
        self.answer(with_body=True, fault=left.pop(0) if left else None)

    def answer(self, *, with_body, fault=None):
        file = self.shards.folder / self.path.lstrip("/")
        status, headers = self.shards.headers.get(self.path, (0, {}))
        if status or fault == "endless":
            self.send_response(status or 200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                while with_body and fault == "endless" and self.shards.sent < ENOUGH:
                    self.shards.sent += self.wfile.write(PIECE)
            return
        if isinstance(fault, int) or not file.is_file():
            self.send_error(fault or 404)
            return
        body = file.read_bytes()
        self.send_response(200)
        sent = {"cut": body[: len(body) // 2], "short": body[:-7], "long": body + b"more"}.get(fault, body)
        self.send_header("Content-Length", str(len(body if fault in (None, "cut", "stall") else sent)))
        self.send_header("ETag", f'"{hash(body)}"')
        self.end_headers()
        if with_body and fault == "stall":
            self.wfile.write(body[:10])
            self.wfile.flush()
            self.shards.released.wait(60)
        elif with_body:
            with contextlib.suppress(OSError):
                self.wfile.write(sent)
        self.close_connection = True
