"""A broker that speaks TLS, with certificates that exist for the run.

`NEXO_BIN` is the program under test. The certificates are made by the commands of docs/tls.md, so a reader's work too.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tls.md"
ANY = "127.0.0.1:0"


def blocks():
    """Runs of lines that are indented by four spaces, without that; empty lines within belong to them."""
    found, block = [], []
    for line in PAGE.read_text().splitlines() + ["end"]:
        if line.startswith("    ") or (not line and block):
            block.append(line[4:])
        elif block:
            found.append("\n".join(block).strip())
            block = []
    return found


def block(beginning):
    """The block that begins so."""
    (found,) = [text for text in blocks() if text.startswith(beginning)]
    return found


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


class Certificates:
    """An authority, and what it has signed."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="nexo-tls-")
        subprocess.run(block("openssl"), shell=True, cwd=self.folder, check=True, capture_output=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def client(self, name):
        """The files of a certificate for a client whose common name this is."""
        key, request, cert = (f"{name}-{kind}.pem" for kind in ("key", "request", "cert"))
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        usage = ["-addext", "extendedKeyUsage=clientAuth"]
        openssl(self.folder, "req", *curve, *usage, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        sign = ["-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-copy_extensions", "copy", "-days", "2"]
        openssl(self.folder, "x509", "-req", "-in", request, *sign, "-out", cert)
        return self.path(cert), self.path(key)


def made():
    made = Certificates()
    yield made
    shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture
def certificates():
    """Those of the broker."""
    yield from made()


@pytest.fixture
def other():
    """Those of another authority."""
    yield from made()


class Nexo:
    """A broker with TLS on free ports, and data that goes with it."""

    def __init__(self, certificates, *arguments):
        program = os.environ.get("NEXO_BIN")
        if not program:
            pytest.skip("NEXO_BIN is not set")
        self.data = tempfile.mkdtemp(prefix="nexo-tls-data-")
        files = ["--tls-cert", certificates.path("cert.pem"), "--tls-key", certificates.path("key.pem")]
        ports = ["--amqps", ANY, "--sqs-tls", ANY]
        for name in ("amqp", "sqs", "grpc", "http", "grpc-tls", "https"):
            ports += [f"--{name}", "off"]
        self.process = subprocess.Popen(
            [program, "serve", *ports, *files, "--data-dir", self.data, *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        ready = self.process.stdout.readline()
        self.amqps, self.sqs = (int(re.search(rf"{name}=\S+?:(\d+)", ready)[1]) for name in ("amqps", "sqs-tls"))

    def hang_up(self):
        self.process.send_signal(signal.SIGHUP)

    def clean(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.data, ignore_errors=True)


@pytest.fixture
def nexo(certificates):
    """Starts brokers with these arguments; all end with the test."""
    started = []

    def start(*arguments):
        started.append(Nexo(certificates, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.clean()
