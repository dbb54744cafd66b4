"""A site for tests: a cluster whose machines share only an S3 server, a PostgreSQL server, and drivers on its machines.

`Shop` is one pipeline of such a site: its input, its drivers, and what its tables must contain.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import obstore
import psycopg
from obstore.store import S3Store

import s3fixture
from machines import Machine, free_port, kill_all, send_all, until
from pgfixture import Postgres
from standalone import StandaloneCluster

DRIVER = Path(__file__).parent / "faults" / "clusterdriver.py"


class Driver:
    """A driver on some machine, and the lines that it has printed."""

    def __init__(self, machine: Machine, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.lines: list[str] = []
        self.process = machine.start(command, environment, subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line.decode(errors="replace").rstrip())

    def has(self, start: str, times: int = 1) -> bool:
        return sum(line.startswith(start) for line in self.lines) >= times

    def until(self, start: str, times: int = 1, seconds: float = 400) -> None:
        """Wait for a line."""
        until(lambda: self.has(start, times) or self.process.poll() is not None, f"{start!r}\n{self}", seconds)
        assert self.has(start, times), f"the driver ended before {start!r}\n{self}"

    def end(self, seconds: float = 600) -> str:
        """Wait for the end; return how it ended."""
        until(lambda: self.process.poll() is not None, f"the end\n{self}", seconds)
        self._reader.join(30)
        ended = [line for line in self.lines if line.startswith("ended ")]
        assert len(ended) == 1, str(self)
        return ended[0].removeprefix("ended ")

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kill Python and its JVM at once, as if the machine had lost power."""
        kill_all(self.process)

    def pause(self) -> None:
        send_all(self.process, signal.SIGSTOP)

    def resume(self) -> None:
        send_all(self.process, signal.SIGCONT)

    def __str__(self) -> str:
        return "\n".join(self.lines[-80:])


class Site:
    """The servers and the cluster, for all tests of a module."""

    def __init__(self, **options: Any) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hfsite"))
        self._folder.chmod(0o755)
        self.store = s3fixture.server()
        self.store.start()
        (self._folder / "postgres").mkdir(mode=0o700)
        self.postgres = Postgres(self._folder / "postgres", free_port())
        given = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        self.environment = {**given, **s3fixture.environment(self.store.endpoint), "PYSPARK_PYTHON": sys.executable}
        self.cluster = StandaloneCluster(self._folder, self.environment, **options)
        self._numbers = itertools.count(1)

    def machine(self) -> Machine:
        """Add a machine for drivers."""
        return self.cluster.machine(f"driver-{next(self._numbers)}")

    def close(self) -> None:
        """End everything."""
        self.cluster.close()
        self.postgres.stop("immediate")
        shutil.rmtree(self._folder)


class Shop:
    """One pipeline of two streams, its input, and what its tables must contain."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.database = site.postgres.fresh_database()
        self.bucket = site.store.bucket()
        self._place = s3fixture.S3Place(site.store, self.bucket, site.store.endpoint)
        self._client = S3Store(
            self.bucket,
            endpoint=site.store.endpoint,
            access_key_id=s3fixture.KEY_ID,
            secret_access_key=s3fixture.SECRET,
            region=s3fixture.REGION,
            client_options={"allow_http": True},
        )
        self.given: list[int] = []
        self.machines = [site.machine(), site.machine()]

    def feed(self, files: int, rows: int = 20) -> None:
        """Add files of new rows to the input."""
        for _ in range(files):
            numbers = range(len(self.given), len(self.given) + rows)
            self.put({"n": n, "k": n % 5} for n in numbers)
            self.given += numbers

    def put(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add a file of these rows to the input."""
        text = "\n".join(json.dumps(row) for row in rows)
        obstore.put(self._client, f"in/{uuid.uuid4()}.json", text.encode())

    def start(self, machine: int = 0, environment: Mapping[str, str] | None = None, **more: Any) -> Driver:
        """Start a driver on one of two machines."""
        spec = {
            "master": self.site.cluster.url,
            "root": f"s3://{self.bucket}/root",
            "given": f"s3a://{self.bucket}/in",
            "dsn": self.site.postgres.network_dsn(self.database),
            **more,
        }
        command = [sys.executable, str(DRIVER), json.dumps(spec)]
        return self.start_command(command, machine, environment or {})

    def start_command(self, command: Sequence[str], machine: int, environment: Mapping[str, str]) -> Driver:
        """Start any other driver."""
        return Driver(self.machines[machine], command, {**self.site.environment, **environment})

    def names(self) -> list[str]:
        """Return the names of all objects in the repository."""
        root = self._place.folder / "root"
        return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]

    def table(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none if the table does not exist yet."""
        try:
            return self.site.postgres.execute(query, self.database)
        except psycopg.errors.UndefinedTable:
            return []

    def rows(self) -> list[int]:
        """Return the rows of the stateless stream."""
        return [n for (n,) in self.table("SELECT n FROM rows ORDER BY n")]

    def totals(self) -> list[tuple[int, int, int]]:
        """Return the rows of the stateful stream."""
        return self.table("SELECT k, many, total FROM totals ORDER BY k")

    def expected_totals(self) -> list[tuple[int, int, int]]:
        """Return what they must be."""
        found: dict[int, list[int]] = defaultdict(list)
        for n in self.given:
            found[n % 5].append(n)
        return [(k, len(each), sum(each)) for k, each in sorted(found.items())]

    def check(self) -> None:
        """Every row was counted once, by both streams."""
        found = self.rows()
        lost, doubled = set(self.given) - set(found), len(found) - len(set(found))
        assert (len(lost), doubled) == (0, 0)
        assert self.totals() == self.expected_totals()
