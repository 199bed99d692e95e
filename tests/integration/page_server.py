"""A web server for a sandbox, with the standard library only: a page, what it sends, and a WebSocket.

The page is complete only once its script has shown what came over the WebSocket, so a browser's `load` event says that.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = b"""<!doctype html><title>inside</title>
<p id="socket">nothing</p><p id="posted">nothing</p>
<script>
const show = (id, text) => { document.getElementById(id).textContent = text; };
const socket = new WebSocket(`ws://${location.host}/socket`);
socket.onopen = () => socket.send("hello");
socket.onmessage = async (event) => {
  show("socket", event.data);
  const answer = await fetch("/post", {method: "POST", body: "from the page"});
  show("posted", await answer.text());
  socket.send("shown");
};
</script>
<img src="/held" alt="">
"""
shown = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Upgrade", "").lower() == "websocket":
            self.talk()
        elif self.path == "/held":
            shown.wait(30)
            self.answer(b"", "image/png")
        elif self.path == "/":
            self.answer(PAGE, "text/html", [("Set-Cookie", "visited=yes; Domain=localhost")])
        else:
            self.answer(f"{self.command} {self.path} {self.headers['Host']}\n".encode(), "text/plain")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(body + b", " + self.headers.get("Cookie", "no cookie").encode(), "text/plain")

    def answer(self, body: bytes, kind: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def talk(self) -> None:
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            first, size = self.rfile.read(2)
            mask = self.rfile.read(4)  # every message here is short
            text = bytes(byte ^ mask[place % 4] for place, byte in enumerate(self.rfile.read(size & 127)))
            if first & 15 == 8:
                return
            if text == b"shown":
                shown.set()
                continue
            reply = b"echo of " + text + b" for " + self.headers["Origin"].encode()
            self.wfile.write(struct.pack("!BB", 0x81, len(reply)) + reply)

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("ready", flush=True)
server.serve_forever()
