"""One table of an Iceberg catalog, and the errors of PyIceberg as those of a sink.

Rules:
- Only SQL and REST catalogs are used: the others are not tested. A SQL catalog in memory is refused.
- The endpoint and the region of S3 come from the same variables as for a repository, unless the catalog names them.
  Credentials are read from the environment, or from the catalog's properties. They reach no error, handle or record.
- PyIceberg retries a commit that was refused, and adds the same files again: rows would be doubled. It also deletes
  the metadata of a commit that it believes to have failed. So its transactions only compute a change. The catalog is
  called once, here, and the caller looks at the table again before it repeats anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import requests
from pyiceberg import exceptions as ex
from pyiceberg.catalog import Catalog, CatalogType, load_catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, AssertRefSnapshotId, AssertTableUUID
from pyiceberg.utils.config import Config
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from holdfast._redaction import REDACTED, redacted, redacted_text
from holdfast.errors import BadValue, HoldfastError, NotSupported, SinkFailed, SinkUnavailable
from holdfast.repository.aws_profile import ENDPOINTS, REGIONS, first_set
from holdfast.sinks.lake.table_folder import failing_at

_IO = "py-io-impl"
_SYNCED = "holdfast.sinks.iceberg.synced_io.SyncedFileIO"
_SECRET_LENGTH = 4  # shorter values are not replaced in texts
_OUTAGES = (
    "NETWORK_CONNECTION",
    "SLOW_DOWN",
    "SERVICE_UNAVAILABLE",
    "INTERNAL_FAILURE",
    "REQUEST_TIMEOUT",
    "THROTTLING",
)
_FIX = "fix the catalog or the storage (server, permissions, space), then run again"
_UNREACHABLE = (
    requests.ConnectionError,
    requests.Timeout,
    ex.ServiceUnavailableError,
    ex.ServerError,
    ex.TooManyRequestsError,
    ex.CommitStateUnknownException,
)


class CommitRefused(Exception):
    """Another commit came first: the table must be read again."""


class CatalogTable:
    """A table by its name. It is loaded again for each use, because other programs change it."""

    def __init__(self, sink: str, catalog: str | Mapping[str, str], table: str) -> None:
        self.sink = sink
        self.table = table
        self._name, self._given = _checked(catalog)
        self._loaded: Catalog | None = None
        if not isinstance(table, str) or len([part for part in table.split(".") if part]) < 2 or ".." in table:
            raise BadValue(what="table", value=table, expected="a namespace and a name, such as shop.orders")

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the catalog: those that were given, and PyIceberg's configuration."""
        found = Config().get_catalog_config(self._name) or {}
        return {str(name): str(value) for name, value in {**found, **self._given}.items()}

    @property
    def target(self) -> str:
        """The table, written so that two sinks of one table have the same text. It contains no secrets."""
        return f"iceberg {redacted_text(self.properties.get('uri', self._name))} {self.table}"

    @property
    def _catalog(self) -> Catalog:
        if self._loaded is None:
            self._loaded = self._connected()
        return self._loaded

    def _connected(self) -> Catalog:
        found = self.properties
        if not found:
            do = "pass catalog={'type': ..., 'uri': ...}, or configure it in .pyiceberg.yaml"
            raise BadValue(what="catalog", value=self._name, why="PyIceberg's configuration does not name it", do=do)
        kind = found.get("type", "")
        uri = found.get("uri", "")
        if kind.lower() == "in-memory" or uri.rstrip("/") == "sqlite:" or ":memory:" in uri:
            raise self._refused("a catalog in memory", "its tables are lost when the process ends")
        if _is_other_type(kind) or (not kind and uri.startswith("thrift")):  # so that no package for it is named
            raise self._refused(f"a catalog of the type {kind or CatalogType.HIVE.value}", "it is not tested")
        try:
            made = load_catalog(self._name, **{**_s3_properties(found), _IO: _SYNCED, **self._given})
        except (ValueError, ex.NoSuchPropertyException) as error:
            value = redacted(found)
            raise BadValue(what="catalog", value=value, why=self._safe(error), do="correct its properties") from None
        except ex.NotInstalledError as error:
            raise NotSupported(what="this catalog", why=self._safe(error), do="install the package") from None
        if not isinstance(made, SqlCatalog | RestCatalog) or isinstance(made, InMemoryCatalog):
            raise self._refused(f"a catalog of the type {kind or type(made).__name__}", "it is not tested")
        return made

    def _refused(self, what: str, why: str) -> NotSupported:
        return NotSupported(what=f"{what} for sink {self.sink!r}", why=why, do="use a catalog of the type sql or rest")

    def load(self) -> Table | None:
        """Return the table as it is now, or `None` if it does not exist."""
        catalog = self._catalog
        try:
            return catalog.load_table(self.table)
        except (ex.NoSuchTableError, ex.NoSuchNamespaceError):
            return None
        except (ValueError, ex.ValidationError) as error:  # from PyIceberg's parser
            why, do = f"the metadata of table {self.table} cannot be read: {self._safe(error)}", "restore its metadata"
            raise SinkFailed(sink=self.sink, action="be read", why=why, do=do) from None

    def create(self, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> Table:
        """Create the table, and its namespace, unless another process has just done so."""
        namespace = self.table.rpartition(".")[0]
        try:
            self._catalog.create_namespace_if_not_exists(namespace)
            return self._catalog.create_table(self.table, schema, partition_spec=spec, properties=dict(properties))
        except ex.TableAlreadyExistsError:
            return self._catalog.load_table(self.table)

    def commit(self, table: Table, change: Transaction) -> None:
        """Commit a change, once. `CommitRefused`: nothing was changed. Any other error: it may have been.

        The catalog refuses the change if the branch has moved since the table was loaded, if it is another table, or if
        its columns or its partitioning have changed: the caller has checked them.
        """
        head = table.metadata.refs.get(MAIN_BRANCH)
        at = None if head is None else head.snapshot_id
        unmoved = AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": at})
        same = AssertTableUUID(uuid=table.metadata.table_uuid)
        columns = AssertCurrentSchemaId.model_validate({"current-schema-id": table.metadata.current_schema_id})
        partitions = AssertDefaultSpecId.model_validate({"default-spec-id": table.metadata.default_spec_id})
        try:
            table._do_commit(change._updates, (unmoved, same, columns, partitions))
        except ex.CommitFailedException as error:
            raise CommitRefused(self._safe(error)) from None

    @contextmanager
    def failing(self, action: str) -> Iterator[None]:
        """Raise the errors of PyIceberg, of a catalog and of the storage as those of a sink."""
        with failing_at(self.sink, action):
            try:
                yield
            except HoldfastError:
                raise
            except Exception as error:
                found = self._failure(error, action)
                if found is None:
                    raise
                raise found from None

    def _failure(self, error: Exception, action: str) -> SinkFailed | None:
        """Return the error of a sink; `None` for those that `failing_at` handles, and for all others."""
        kind, do = SinkFailed, _FIX
        match error:
            case ex.ForbiddenError() | ex.UnauthorizedError() | ex.OAuthError() | ex.AuthorizationExpiredError():
                do = "check the catalog's credential or token, and its permissions for this table; then run again"
            case ex.NoSuchTableError() | ex.NoSuchNamespaceError():
                do = "restore the table, or stop the stream: it was dropped while the stream ran"
            case CommitRefused() | ex.ValidationException():
                kind, do = SinkUnavailable, "run again: other programs have committed to the table all the time"
            case DBAPIError():
                kind = SinkUnavailable
            case SQLAlchemyError() | ex.RESTError() | requests.RequestException():
                kind = SinkUnavailable if isinstance(error, _UNREACHABLE) else SinkFailed
            case OSError() if any(name in str(error) for name in _OUTAGES):  # PyArrow reports an outage of S3 as text
                kind = SinkUnavailable
            case _:
                return None
        text = self._safe(error.orig if isinstance(error, DBAPIError) and error.orig else error)
        return kind(sink=self.sink, action=action, why=text, do=do)

    def _safe(self, error: object) -> str:
        """Return the text of an error without the secrets of the catalog."""
        text = redacted_text(" ".join(str(error).split()) or type(error).__name__)
        kept = redacted(self.properties)
        for name, value in self.properties.items():
            if kept[name] == REDACTED and len(value) >= _SECRET_LENGTH:
                text = text.replace(value, REDACTED)
        return text

    def close(self) -> None:
        """Close the connections."""
        if isinstance(self._loaded, SqlCatalog | RestCatalog):
            self._loaded.close()
        self._loaded = None


def _checked(catalog: object) -> tuple[str, dict[str, str]]:
    if isinstance(catalog, str) and catalog.strip():
        return catalog, {}
    if isinstance(catalog, Mapping) and catalog and all(isinstance(name, str) for name in catalog):
        given: dict[str, Any] = dict(catalog)
        name = given.pop("name", "default")
        if isinstance(name, str) and all(isinstance(value, str) for value in given.values()):
            return name, given
    expected = "the name of a configured catalog, or its properties, such as {'type': 'rest', 'uri': ...}"
    shown = sorted(map(str, catalog)) if isinstance(catalog, Mapping) else catalog  # values may be secrets
    raise BadValue(what="catalog", value=shown, expected=expected)


def _is_other_type(kind: str) -> bool:
    """Whether PyIceberg knows a type of catalog that is not used here. An unknown one is a wrong argument."""
    known = {each.value for each in CatalogType}
    return kind.lower() in known - {CatalogType.SQL.value, CatalogType.REST.value}


def _s3_properties(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return endpoint and region of S3 from the environment. PyArrow itself reads credentials, also of a profile."""
    endpoint, region = first_set(ENDPOINTS, environment), first_set(REGIONS, environment)
    found = {"s3.endpoint": endpoint} if endpoint else {}
    if region or endpoint:
        found["s3.region"] = region or "us-east-1"  # a server of one's own has none
    return {name: value for name, value in found.items() if name not in given}
