"""Real SuperLink, SuperExec and SuperNodes on loopback, over TLS with node authentication; all killed at the end."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent
LINK = "test-link"
HOST = "127.0.0.1"
_RESTART_S = 5.0
_COMMAND_S = 0.8
"""What `flwr --version` takes on two quiet cores."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0, every: float = 0.25) -> None:
    """Wait for something; an AssertionError with its name if it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:.0f} s")
        time.sleep(every)


def slot_seconds(quiet_s: float) -> float:
    """A slot that takes `quiet_s` on a quiet machine, longer on a busy one: as much as a command of Flower's takes longer."""
    began = time.monotonic()
    subprocess.run([str(BIN / "flwr"), "--version"], capture_output=True, check=True)
    return quiet_s * min(max((time.monotonic() - began) / _COMMAND_S, 1.0), 3.0)


@dataclass
class Proxy:
    """Between a SuperNode and the SuperLink: passes bytes on; while it is cut, connections are refused.

    Refused, not taken and closed: a SuperNode takes a broken TLS handshake for a wrong certificate and gives up for good.
    """

    target: int
    port: int = field(default_factory=free_port)
    _pairs: list[socket.socket] = field(default_factory=list)
    _listener: socket.socket | None = None

    def start(self) -> None:
        listener = self._listener = socket.create_server((HOST, self.port))

        def accept() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                try:
                    far = socket.create_connection((HOST, self.target), timeout=5)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                self._pairs += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def cut(self) -> None:
        listener, self._listener = self._listener, None
        for one in (*([listener] if listener else []), *self._pairs):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._pairs.clear()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


class Deployment:
    """A federation on this machine. `sites`: name -> node config besides the name."""

    def __init__(
        self, folder: Path, sites: Mapping[str, Mapping[str, Any]], *, secure: bool = True, proxies: bool = False
    ) -> None:
        self.folder, self.sites, self.secure = folder, sites, secure
        self.home = folder / "flwr"
        self.port = free_port()
        self.proxies = {name: Proxy(self.port) for name in sites} if proxies else {}
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.superlink: subprocess.Popen[bytes] | None = None
        self.superexec: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        self.ids: dict[str, str] = {}
        """Name -> node id, of those that are registered."""
        self._kept: set[str] = set()
        self._said: dict[str, int] = {}
        self._closed = threading.Event()
        self._starting = threading.RLock()

    # Starting and stopping.

    def __enter__(self) -> Deployment:
        self.home.mkdir(parents=True, exist_ok=True)
        if self.secure:
            make_certificates(self.folder)
        lines = [f"[superlink.{LINK}]", f'address = "{HOST}:{self.port}"']
        lines += [f'root-certificates = "{self.folder / "ca.crt"}"'] if self.secure else ["insecure = true"]
        (self.home / "config.toml").write_text("\n".join(lines) + "\n")
        try:
            self.start_superlink()
            self.start_superexec()
            for name in self.sites:
                self.start_node(name)
            threading.Thread(target=self._keep, daemon=True).start()
            self.wait_online()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()
        with self._starting:
            self._kept.clear()
        for process in self._started:
            kill_tree(process)
        for proxy in self.proxies.values():
            proxy.cut()
        for log in self._logs:
            log.close()

    def start_superlink(self) -> None:
        command = [
            "flower-superlink",
            "--host",
            HOST,
            "--port",
            str(self.port),
            "--database",
            str(self.folder / "link.db"),
        ]
        command += ["--isolation", "process", "--disable-runtime-dependency-installation"]
        if self.secure:
            command += [
                "--ssl-ca-certfile",
                str(self.folder / "ca.crt"),
                "--ssl-certfile",
                str(self.folder / "server.pem"),
            ]
            command += ["--ssl-keyfile", str(self.folder / "server.key"), "--enable-supernode-auth"]
        else:
            command.append("--insecure")
        self.superlink = self._start("superlink", command, self.home)
        until(self._listens, "the SuperLink listens")
        for proxy in self.proxies.values():
            proxy.start()

    def start_superexec(self) -> None:
        command = ["flower-superexec", "--runtime-api-address", f"{HOST}:{self.port}", *self._trust()]
        self.superexec = self._start("superexec", command, self.home)

    def start_node(self, name: str) -> None:
        """Start a SuperNode; with authentication under its own key, registered under its name."""
        said = {"name": name, **self.sites[name]}
        config = " ".join(
            f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in said.items()
        )
        port = self.proxies[name].port if name in self.proxies else self.port
        command = ["flower-supernode", "--superlink", f"{HOST}:{port}", "--host", HOST, "--port", str(free_port())]
        command += ["--node-config", config, *self._trust()]
        if self.secure:
            key = self.folder / f"{name}.key"
            if name not in self.ids:
                self._register(name)
            command += ["--auth-supernode-private-key", str(key)]
        with self._starting:
            if not self._closed.is_set():
                self._said[name] = self._log(name).stat().st_size if self._log(name).exists() else 0
                self.nodes[name] = self._start(name, command, self.folder / f"flwr-{name}")
                self._kept.add(name)

    def _register(self, name: str) -> None:
        key = self.folder / f"{name}.key"
        key.unlink(missing_ok=True)
        make_key(key)
        said = self.flwr("supernode", "register", f"{key}.pub", LINK, "--name", name)
        found = re.search(r"SuperNode (\d+) registered", said)
        assert found is not None, said
        self.ids[name] = found[1]

    def renew_node(self, name: str) -> None:
        """SIGKILL, and the same site again with a new key, under a new node id."""
        self.kill_node(name)
        self.flwr("supernode", "unregister", self.ids.pop(name), LINK)
        self.start_node(name)

    def _keep(self) -> None:
        """As a service manager with a watchdog does: a SuperNode that ended, or gave up, is started again.

        One that was killed is refused as long as the SuperLink takes its former self for alive, up to a minute. One whose
        TLS handshake was broken off gives up for good, while its process lives on.
        """
        while not self._closed.wait(_RESTART_S):
            with self._starting:
                for name in sorted(self._kept):
                    gave_up = b"handshake error" in self._log(name).read_bytes()[self._said[name] :]
                    if gave_up:
                        kill_tree(self.nodes[name])
                    if gave_up or self.nodes[name].poll() is not None:
                        self.start_node(name)

    def kill_node(self, name: str) -> None:
        """SIGKILL, to the SuperNode alone, as the system would; it stays down until it is started."""
        with self._starting:
            self._kept.discard(name)
        self.nodes[name].kill()
        self.nodes[name].wait()

    def kill_nodes(self) -> None:
        """SIGKILL to all of them and what they started."""
        with self._starting:
            self._kept.clear()
        for node in self.nodes.values():
            kill_tree(node)

    def hang_node(self, name: str) -> None:
        """SIGSTOP to a SuperNode and all it started."""
        send(family(self.nodes[name]), signal.SIGSTOP)

    def wake_node(self, name: str) -> None:
        send(family(self.nodes[name]), signal.SIGCONT)

    def kill_superlink(self) -> None:
        assert self.superlink is not None
        for proxy in self.proxies.values():
            proxy.cut()
        self.superlink.kill()
        self.superlink.wait()

    def kill_superexec(self) -> None:
        assert self.superexec is not None
        kill_tree(self.superexec)

    def server_apps(self) -> list[int]:
        """Processes that carry out a ServerApp now."""
        assert self.superexec is not None
        return [each for each in family(self.superexec)[1:] if _is(each, "flwr-serverapp")]

    def client_apps(self, name: str) -> list[int]:
        return [each for each in family(self.nodes[name])[1:] if _is(each, "flwr-clientapp")]

    def memory_mb(self) -> dict[str, float]:
        """Proportional set size by what it is, so that shared pages count once."""
        parts = {"superlink": self.superlink, "superexec": self.superexec}
        found = {kind: sum(map(pss_mb, family(process))) for kind, process in parts.items() if process}
        return found | {"supernodes": sum(pss_mb(each) for node in self.nodes.values() for each in family(node))}

    def flwr(self, *arguments: str) -> str:
        done = subprocess.run([str(BIN / "flwr"), *arguments], capture_output=True, text=True, env=self.env(self.home))
        if done.returncode:
            raise AssertionError(f"flwr {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def wait_online(self, seconds: float = 120.0) -> None:
        """Until every SuperNode has connected to the SuperLink."""

        def online() -> bool:
            listed = self.flwr("supernode", "ls", LINK, "--format", "json")
            return listed.lower().count('"online"') >= len(self.sites)

        until(online, "all SuperNodes are online", seconds, every=1.0)

    def env(self, home: Path) -> dict[str, str]:
        home.mkdir(parents=True, exist_ok=True)
        return {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def tail(self, lines: int = 15) -> str:
        """Ends of all logs, for a test that fails."""
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            parts += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(parts)

    def _trust(self) -> list[str]:
        return ["--root-certificates", str(self.folder / "ca.crt")] if self.secure else ["--insecure"]

    def _start(self, name: str, command: list[str], home: Path) -> subprocess.Popen[bytes]:
        log = self._log(name).open("ab")
        self._logs.append(log)
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=self.env(home),
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _listens(self) -> bool:
        assert self.superlink is not None
        if self.superlink.poll() is not None:
            raise AssertionError(f"the SuperLink ended:\n{self.tail()}")
        try:
            with socket.create_connection((HOST, self.port), timeout=1):
                return True
        except OSError:
            return False


def family(process: subprocess.Popen[bytes]) -> list[int]:
    """A process that we started, and all that came of it and is alive, by their ids."""
    if process.poll() is not None:
        return []
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(stat.parent.name))
    found = [process.pid]
    for pid in found:
        found += parents.get(pid, [])
    return found


def send(pids: Iterable[int], what: signal.Signals) -> None:
    """A signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process that we started, its children, and its session: nothing stays behind."""
    send(family(process), signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is(pid: int, program: str) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:3]
        return any(Path(word.decode(errors="replace")).name.startswith(program) for word in words)
    return False


def pss_mb(pid: int) -> float:
    """Proportional set size."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def make_certificates(folder: Path) -> None:
    """A root of our own, and a certificate of the server for loopback."""
    now = dt.datetime.now(dt.UTC)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def built(subject: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named("test root"))
        builder = builder.public_key(key).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=7))

    root_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    root = built("test root", root_key.public_key()).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    root = root.add_extension(usage, True)
    root = root.add_extension(x509.SubjectKeyIdentifier.from_public_key(root_key.public_key()), False)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    server = built("localhost", server_key.public_key()).add_extension(x509.SubjectAlternativeName(names), False)
    server = server.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), False)
    for path, builder in (("ca.crt", root), ("server.pem", server)):
        signed = builder.sign(root_key, hashes.SHA256())
        (folder / path).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    _write_key(folder / "server.key", server_key, serialization.PrivateFormat.PKCS8)


def make_key(path: Path) -> None:
    """What `ssh-keygen -t ecdsa -b 384` makes."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    Path(f"{path}.pub").write_bytes(public + b"\n")


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


@contextlib.contextmanager
def flower_home(deployment: Deployment) -> Iterator[None]:
    """`slackwater` and `flwr` of this process look for connections there."""
    before = os.environ.get("FLWR_HOME")
    os.environ["FLWR_HOME"] = str(deployment.home)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("FLWR_HOME", None)
        else:
            os.environ["FLWR_HOME"] = before


def has_flower() -> bool:
    return (BIN / "flower-superlink").exists() and shutil.which("flwr", path=str(BIN)) is not None
