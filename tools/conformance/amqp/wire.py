"""A bare AMQP connection: frames in and out of a socket, with nothing added.

The tests use it where a client library would be in the way: to send what no library sends, and to see every
byte that comes back. Methods are encoded by pika's generated `spec`; frames are cut here.
"""

import socket
import struct
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from pika import spec

# The longest wait for what must come, on a busy machine.
PATIENCE = 30
HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, CONTENT_HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE


@dataclass
class Frame:
    """One frame as it was read."""

    kind: int
    channel: int
    payload: bytes

    def method(self):
        """The method in this frame; its class if `spec` does not know it."""
        assert self.kind == METHOD, f"expected a method frame, got {self}"
        (index,) = struct.unpack(">I", self.payload[:4])
        return spec.methods[index]().decode(self.payload, 4)


def method_payload(method):
    """A method's class, number and arguments."""
    return struct.pack(">I", method.INDEX) + b"".join(method.encode())


def frame(kind, channel, payload, end=END):
    """A frame's bytes."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


def shortstr(text):
    """A short string: one byte of length."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">B", len(data)) + data


def longstr(data):
    """A long string: four bytes of length."""
    data = data.encode() if isinstance(data, str) else data
    return struct.pack(">I", len(data)) + data


def table(*fields):
    """A field table of (name, type letter, value bytes)."""
    return longstr(b"".join(shortstr(name) + letter + value for name, letter, value in fields))


class Wire:
    """A connection of which every step is the test's own."""

    def __init__(self, url, connect_timeout=PATIENCE):
        parts = urlsplit(url)
        self.user = unquote(parts.username or "guest")
        self.password = unquote(parts.password or "guest")
        self.vhost = unquote(parts.path[1:]) or "/"
        self.socket = socket.create_connection((parts.hostname, parts.port or 5672), connect_timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.unread = b""
        self.server_properties = None
        self.tune = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    # Sending

    def send(self, data):
        """Bytes as they are."""
        self.socket.sendall(data)

    def send_frame(self, kind, channel, payload, end=END):
        """A frame, of whatever kind."""
        self.send(frame(kind, channel, payload, end))

    def send_method(self, channel, method):
        """A method frame."""
        self.send_frame(METHOD, channel, method_payload(method))

    def call(self, channel, method, answer):
        """A method frame, then its answer."""
        self.send_method(channel, method)
        return self.expect(answer)

    def publish_bytes(self, channel, exchange, routing_key, body, properties=b"\x00\x00", frame_max=131072):
        """The frames of a publish, with the content header's flags and properties as raw bytes."""
        publish = spec.Basic.Publish(exchange=exchange, routing_key=routing_key)
        header = struct.pack(">HHQ", 60, 0, len(body)) + properties
        piece = frame_max - 8
        pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
        return b"".join(
            [frame(METHOD, channel, method_payload(publish)), frame(CONTENT_HEADER, channel, header)]
            + [frame(BODY, channel, part) for part in pieces]
        )

    # Reading

    def read_exactly(self, count, timeout=PATIENCE):
        """This many bytes, or None when the peer closed first."""
        self.socket.settimeout(timeout)
        while len(self.unread) < count:
            try:
                more = self.socket.recv(65536)
            except ConnectionResetError:
                more = b""
            if not more:
                return None
            self.unread += more
        data, self.unread = self.unread[:count], self.unread[count:]
        return data

    def read_frame(self, timeout=PATIENCE):
        """The next frame of any kind, or None when the peer closed."""
        head = self.read_exactly(7, timeout)
        if head is None:
            return None
        kind, channel, size = struct.unpack(">BHI", head)
        rest = self.read_exactly(size + 1, timeout)
        if rest is None:
            return None
        assert rest[-1] == END, f"a frame ended with {rest[-1]:#x}"
        return Frame(kind, channel, rest[:-1])

    def next_frame(self, timeout=PATIENCE):
        """The next frame that is not a heartbeat."""
        while True:
            found = self.read_frame(timeout)
            if found is None or found.kind != HEARTBEAT:
                return found

    def expect(self, kind, timeout=PATIENCE):
        """The next method, which must be of this class."""
        found = self.next_frame(timeout)
        assert found is not None, f"the broker closed the socket; expected {kind.NAME}"
        method = found.method()
        assert isinstance(method, kind), f"expected {kind.NAME}, got {method}"
        return method

    def expect_close(self, code, text=None):
        """The broker closes the connection with this code and text; answers close-ok."""
        close = self.expect(spec.Connection.Close)
        assert close.reply_code == code, close
        if text is not None:
            assert close.reply_text == text
        self.send_method(0, spec.Connection.CloseOk())
        return close

    def expect_eof(self, timeout=PATIENCE):
        """The broker closes the socket without a further frame other than heartbeats."""
        found = self.next_frame(timeout)
        assert found is None, f"expected the end of the socket, got {found}"

    # Steps of the handshake

    def start(self):
        """Header sent, connection.start read."""
        self.send(HEADER)
        start = self.expect(spec.Connection.Start)
        self.server_properties = start.server_properties
        return start

    def start_ok(self, mechanism="PLAIN", response=None, capabilities=None, client_properties=None):
        """Answers connection.start."""
        if response is None:
            response = f"\0{self.user}\0{self.password}".encode()
        properties = dict(client_properties or {})
        if capabilities:
            properties["capabilities"] = capabilities
        payload = (
            struct.pack(">I", spec.Connection.StartOk.INDEX)
            + b"".join(_encode_table(properties))
            + shortstr(mechanism)
            + longstr(response)
            + shortstr("en_US")
        )
        self.send_frame(METHOD, 0, payload)

    def log_in(self, capabilities=None):
        """The handshake up to connection.tune."""
        self.start()
        self.start_ok(capabilities=capabilities)
        self.tune = self.expect(spec.Connection.Tune)
        return self.tune

    def tune_ok(self, channel_max=None, frame_max=None, heartbeat=0):
        """Answers connection.tune; the broker's own values where none is given."""
        self.send_method(
            0,
            spec.Connection.TuneOk(
                channel_max=self.tune.channel_max if channel_max is None else channel_max,
                frame_max=self.tune.frame_max if frame_max is None else frame_max,
                heartbeat=heartbeat,
            ),
        )

    def open(self, capabilities=None, **tune):
        """The whole handshake."""
        self.log_in(capabilities)
        self.tune_ok(**tune)
        self.call(0, spec.Connection.Open(virtual_host=self.vhost), spec.Connection.OpenOk)
        return self

    def open_channel(self, number=1):
        """Opens a channel."""
        self.call(number, spec.Channel.Open(), spec.Channel.OpenOk)
        return self

    def read_content(self, timeout=PATIENCE):
        """The content header's bytes after the body size, and the body, of the method just read."""
        header = self.next_frame(timeout)
        assert header.kind == CONTENT_HEADER, header
        _, _, size = struct.unpack(">HHQ", header.payload[:12])
        body, frames = b"", 0
        while len(body) < size:
            part = self.next_frame(timeout)
            assert part.kind == BODY, part
            body += part.payload
            frames += 1
        return header.payload[12:], body, frames


def _encode_table(value):
    from pika import data

    pieces = []
    data.encode_table(pieces, value)
    return pieces
