"""A standalone Spark cluster whose machines share nothing but the network (see `machines`), from the pip package."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from machines import NOBODY, WORK, Machine, command_of, family, free_port, kill_all, listens, until


@dataclass
class Worker:
    """A worker and its machine."""

    machine: Machine
    address: str
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None


class StandaloneCluster:
    """A master and its workers, one machine each, from the pip package.

    Workers run as another user, with room for one executor of each of two drivers. Each has an address of its own on
    loopback: Spark reads the shuffle files of another executor directly if both are on one host.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], *, workers: int = 2) -> None:
        self._home = Path(pyspark.__file__).parent
        self._folder = folder
        self._environment = {**environment, "SPARK_HOME": str(self._home)}
        self.port = free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self.disk = folder / "disk"
        self._workers: list[Worker] = []
        self._head = Machine("head", self.disk)
        self._machines = [self._head]
        try:
            self._begin(workers)
        except BaseException:
            self.close()
            raise

    def _begin(self, workers: int) -> None:
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        self._class(self._head, "org.apache.spark.deploy.master.Master", options, {})
        until(lambda: listens(self.port), "the master listens")
        for number in range(workers):
            self.add_worker(f"worker-{number}")
        until(lambda: self._registered(workers), "the workers register")

    def _class(
        self, machine: Machine, name: str, options: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with self._log(machine.name).open("ab") as log:
            command = [str(self._home / "bin/spark-class"), name, *options]
            return machine.start(command, {**self._environment, "SPARK_DAEMON_MEMORY": "256m", **environment}, log)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _registered(self, number: int) -> bool:
        return self._log("head").read_text(errors="replace").count("Registering worker") >= number

    def add_worker(
        self, name: str, *, hidden: Sequence[Path] = (), environment: Mapping[str, str] | None = None
    ) -> int:
        """Add a machine with a worker; return its number. `hidden` are folders that this machine lacks."""
        machine = Machine(name, self.disk, user=NOBODY, hidden=hidden)
        self._machines.append(machine)
        self._workers.append(Worker(machine, f"127.0.0.{len(self._workers) + 2}", environment or {}))
        self.start_worker(len(self._workers) - 1)
        return len(self._workers) - 1

    def start_worker(self, number: int) -> None:
        """Start a worker, on the machine where it ran before if it was killed."""
        worker = self._workers[number]
        size = ["--cores", "2", "--memory", "1200m", "--work-dir", str(self.disk / WORK)]
        options = ["--host", worker.address, "--webui-port", "0", *size, self.url]
        environment = {"SPARK_LOCAL_IP": worker.address, **worker.environment}
        worker.process = self._class(worker.machine, "org.apache.spark.deploy.worker.Worker", options, environment)

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors, as if its machine had lost power."""
        process = self._workers[number].process
        assert process is not None
        kill_all(process)

    def executors(self) -> list[psutil.Process]:
        """Return the executors of all workers."""
        below = [each for worker in self._workers if worker.process for each in family(worker.process)[1:]]
        return [each for each in below if "CoarseGrainedExecutorBackend" in command_of(each)]

    def machine(self, name: str) -> Machine:
        """Add a machine for a driver."""
        made = Machine(name, self.disk)
        self._machines.append(made)
        return made

    def executor_logs(self, number: int) -> str:
        """Return what all executors on a machine have printed."""
        disk = self._workers[number].machine.root / self.disk.relative_to("/")
        return "\n".join(path.read_text(errors="replace") for path in sorted(disk.glob(f"{WORK}/app-*/*/std*")))

    def close(self) -> None:
        """Kill everything."""
        for machine in reversed(self._machines):
            machine.remove()

    def __enter__(self) -> StandaloneCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
