"""Servers on loopback that fail, stall or lie as they are told to: of a folder's files on the web, and of an object
store, before which they stand.
"""

import contextlib
import logging
import os
import threading
from collections import Counter
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

PIECE = b"a line that comes again and again\n" * 2000
ENOUGH = 300_000_000
"""Bytes after which an endless file ends after all: who reads so many has no bound."""
OWN = {"content-length", "transfer-encoding", "connection", "server", "date"}
"""Headers that are not passed on."""
BUCKET = "texts"


class ShardServer:
    """`faults` maps a path to a list of what goes wrong with the next GETs of it, or "HEAD PATH" with the next HEADs,
    one each: a status such as 503, "stall", "cut" (half of the bytes, then the end), "short" (whole by its header, but
    other bytes are missing), "long" or "endless". `asked` counts GETs, `failed` the faults, and `sent` the bytes of
    those without an end. `headers` maps a path to what it is answered with instead: a status and headers; without a
    length where it is endless. Everything else comes from a folder, or from the server at `upstream` (HOST:PORT).
    """

    def __init__(self, folder=None, faults=None, *, upstream=None):
        self.folder, self.upstream, self.faults, self.headers = folder, upstream, faults or {}, {}
        self.asked, self.failed, self.sent = Counter(), Counter(), 0
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

    def read(self, command, path, headers):
        """Return what is answered without a fault: status, headers, length and body."""
        if self.upstream is not None:
            with contextlib.closing(HTTPConnection(self.upstream)) as connection:
                connection.request(command, path, headers=dict(headers))
                answer = connection.getresponse()
                body = answer.read()
                passed = {name: value for name, value in answer.getheaders() if name.lower() not in OWN}
                return answer.status, passed, int(answer.getheader("Content-Length", len(body))), body
        file = self.folder / path.lstrip("/")
        if not file.is_file():
            return 404, {}, 0, b""
        body = file.read_bytes()
        return 200, {"ETag": f'"{hash(body)}"'}, len(body), body


class ShardHandler(BaseHTTPRequestHandler):
    shards: ShardServer

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(self.fault_of("HEAD " + self.path))

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.shards.asked[path] += 1
        self.answer(self.fault_of(path))

    def fault_of(self, asked):
        left = self.shards.faults.get(asked, [])
        if not left:
            return None
        self.shards.failed[left[0]] += 1
        return left.pop(0)

    def answer(self, fault):
        with_body = self.command == "GET"
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
        if isinstance(fault, int):
            self.send_error(fault)
            return
        status, headers, length, body = self.shards.read(self.command, self.path, self.headers)
        self.send_response(status)
        sent = {"cut": body[: len(body) // 2], "short": body[:-7], "long": body + b"more"}.get(fault, body)
        self.send_header("Content-Length", str(length if fault in (None, "cut", "stall") else len(sent)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body and fault == "stall":
            self.wfile.write(body[:10])
            self.wfile.flush()
            self.shards.released.wait(60)
        elif with_body:
            with contextlib.suppress(OSError):
                self.wfile.write(sent)
        self.close_connection = True


@contextlib.contextmanager
def object_store():
    """Run moto's server, which speaks S3's protocol; yield its HOST:PORT, and what puts an object into its bucket.

    Within, the environment has credentials for it, and its address.
    """
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        address = "{}:{}".format(*server.get_host_and_port())
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        with mock.patch.dict(os.environ, {**keys, "AWS_ENDPOINT_URL": f"http://{address}"}):
            client = boto3.client("s3")
            client.create_bucket(Bucket=BUCKET)
            yield address, lambda name, data: client.put_object(Bucket=BUCKET, Key=name, Body=data)
    finally:
        server.stop()
