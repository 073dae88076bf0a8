"""A web server on the loopback that cuts connections, lies about sizes, and dawdles."""

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        manner = server.manners.pop(0) if server.manners else "plain"
        data = server.files.get(self.path)
        if isinstance(data, str):
            self.answer(302, 0, ("Location", data))
            return
        if data is None or manner in ("404", "416", "503"):
            self.answer(int(manner) if data is not None and manner != "plain" else 404, 0)
            return
        begin = 0
        span = self.headers.get("Range")
        if span and manner != "no ranges":
            begin = int(span.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(data):
                self.answer(416, 0)
                return
        left = data[begin:]
        more = [("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")] if begin else []
        lies = {"too small": len(left) // 2, "too large": 2 * len(left), "enormous": 10**15}
        length = lies.get(manner, len(left))
        if manner == "no length":
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(left * 3 if server.endless else left)
            self.close_connection = True
            return
        self.answer(206 if begin else 200, length, *more)
        if manner == "cut":
            self.wfile.write(left[: len(left) // 2])
            self.close_connection = True
        elif manner == "trickle":
            for k in range(0, len(left), 16):
                try:
                    self.wfile.write(left[k : k + 16])
                    self.wfile.flush()
                except OSError:
                    return
                time.sleep(0.02)
                if server.stop.is_set():
                    return
        else:
            self.wfile.write(left)
        if manner in ("too large", "enormous"):
            self.close_connection = True

    def answer(self, status, length, *headers):
        self.send_response(status)
        for name, value in (("Content-Length", str(length)), *headers):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def serving(files):
    """Serve paths to bytes, or to another place; `manners` says how the next requests end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.files, server.manners, server.asked = dict(files), [], []
    server.stop, server.endless = threading.Event(), False
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop.set()
        server.shutdown()
        server.server_close()
        thread.join()
