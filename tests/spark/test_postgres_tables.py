"""Which tables a PostgreSQL sink takes, what it makes of every type, and what it never tells: passwords."""

import datetime as dt
import json
import pickle
import re
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import (
    BadValue,
    HoldfastError,
    MissingExtra,
    NotSupported,
    SchemaMismatch,
    SinkFailed,
    UnsupportedVersion,
)
from holdfast.sinks.base import SinkContext
from holdfast.sinks.postgres.server import Server
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.postgres.target_table import TableName
from holdfast.spark.adapter import few_rows
from pgfixture import GUARDED, server
from pgsupport import METHODS, OWNER, SCHEMA, Table, key

HIDDEN = "hunter2-Zq"


@pytest.fixture
def table(spark: SparkSession) -> Table:
    return Table(server(), spark)


# --- types and tables ------------------------------------------------------------------------------------------------

TYPES = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [1.5, float("-inf")],
    "double": [0.1, 1e300],
    "decimal(38,10)": [Decimal("-1234567890123456789012345678.0000000001"), Decimal("0E-10")],
    "decimal(5,0)": [Decimal(10000), Decimal(-99999)],
    "decimal(12,12)": [Decimal("0.000000010000"), Decimal("0.999999999999")],
    "string": ["", 'a "quoted"\n\\line\t\N{SNOWMAN}'],
    "binary": [b"", bytes(range(256))],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [
        dt.datetime(1901, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=dt.UTC),
    ],
    "timestamp_ntz": [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],
}
MADE = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "decimal(38,10)": "numeric(38,10)",
    "decimal(5,0)": "numeric(5,0)",
    "decimal(12,12)": "numeric(12,12)",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}


def every_type(spark: SparkSession) -> tuple[DataFrame, list[tuple[Any, ...]]]:
    schema = ", ".join(f"`{name} {kind}` {kind.format(name)}" for kind in ("{}", "array<{}>") for name in TYPES)
    first, second = (tuple(values[n] for values in TYPES.values()) for n in (0, 1))
    arrays = tuple([*values, None] for values in TYPES.values())
    nothing = (None,) * len(TYPES)
    rows = [first + arrays, second + tuple([] for _ in TYPES), nothing + nothing]
    return spark.createDataFrame(rows, schema), rows


@pytest.mark.parametrize("driver_rows", [0, 100])
@pytest.mark.parametrize("method", METHODS)
def test_a_table_that_is_made_keeps_every_value_of_every_type(table: Table, method: str, driver_rows: int) -> None:
    """By both ways: after an epoch without rows, the driver copies the next one."""
    df, rows = every_type(table.spark)
    sink = table.made(create=True, method=method, driver_rows=driver_rows)
    sink.open(SinkContext(OWNER, df.schema, "append", table.spark, collect=few_rows(table.spark, freezes=False)))
    table.epoch(sink, 1, df.limit(0))
    made = dict(
        table.run(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'orders'::regclass AND attnum > 0"
        )
    )
    assert made == {f"{name} {{}}": kind for name, kind in MADE.items()} | {
        f"{name} array<{{}}>": f"{kind}[]" for name, kind in MADE.items()
    }
    zone = table.spark.conf.get("spark.sql.session.timeZone")
    table.spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        staged = table.epoch(sink, 2, df.repartition(2))
    finally:
        table.spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert len(staged.handle.get("gids", ()) or staged.handle["parts"]) == (1 if driver_rows else 2)
    found = {repr(row) for row in at_utc(table.run("SELECT * FROM orders"))}
    assert found == {repr(row) for row in at_utc(rows)}


def at_utc(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, dt.datetime) and value.tzinfo:
            return value.astimezone(dt.UTC)
        return format(value, "f") if isinstance(value, Decimal) else value

    return [tuple(plain(value) for value in row) for row in rows]


def test_decimals_of_all_sizes_arrive(table: Table) -> None:
    values = sorted({sign * Decimal(digit * 10**power).scaleb(-8) for sign in (1, -1) for digit in (0, 1, 9, 12345)
                     for power in range(22)})  # fmt: skip
    schema = "d decimal(30,8)"
    sink = table.opened(schema=schema, method="prepared")
    table.epoch(sink, 1, table.spark.createDataFrame([(value,) for value in values], schema))
    assert table.visible("SELECT d FROM orders ORDER BY d") == values


@pytest.mark.parametrize("kind", ["struct<a:int>", "map<string,int>", "array<array<int>>", "interval day to second"])
def test_a_type_that_has_no_place_is_named_with_its_remedy(table: Table, kind: str) -> None:
    with pytest.raises(NotSupported, match=r"column 'odd' of type .*to_json\(odd\)"):
        table.opened(schema=f"n int, odd {kind}")
    assert table.visible("SELECT count(*) FROM pg_class WHERE relname IN ('orders', 'holdfast_epochs')") == [0]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("n bigint", "no column 'text'"),
        ("n bigint, text text, more int NOT NULL", "'more' is NOT NULL without a default"),
        ("n int, text text", "'n' is integer"),
        ("n bigint[], text text", "'n' is bigint"),
        ("n numeric(10, 2), text text", "'n' is numeric"),
        ("n bigint, text date", "'text' is date"),
        ("n bigint GENERATED ALWAYS AS IDENTITY, text text", "generated"),
    ],
)
def test_a_table_that_does_not_take_the_rows_is_refused_at_once(table: Table, columns: str, reason: str) -> None:
    table.run(f"CREATE TABLE orders ({columns})")
    with pytest.raises(SchemaMismatch, match=reason):
        table.opened()


def test_every_reason_is_told_together(table: Table) -> None:
    table.run("CREATE TABLE orders (n date, more int NOT NULL)")
    with pytest.raises(SchemaMismatch) as caught:
        table.opened(epoch_column="e")
    for reason in ("'n' is date", "no column 'text'", "'more' is NOT NULL", "epoch column 'e'"):
        assert reason in str(caught.value)


def test_a_missing_table_a_view_and_a_missing_index_are_refused(table: Table) -> None:
    with pytest.raises(SchemaMismatch, match="create=True"):
        table.opened(table.made())
    table.run("CREATE VIEW orders AS SELECT 1::bigint AS n, ''::text AS text")
    with pytest.raises(SchemaMismatch, match="view"):
        table.opened()
    table.run(
        "CREATE TABLE t (n bigint, text text)",
        "CREATE UNIQUE INDEX ON t (n) WHERE n > 0",
        "CREATE UNIQUE INDEX ON t (lower(text), n)",
        "CREATE UNIQUE INDEX ON t (n, text)",
    )
    with pytest.raises(SchemaMismatch, match=r"no unique index on exactly \(n\)"):
        table.opened(table.made("t", key="n"))
    table.opened(table.made("t", key=["text", "n"]))
    with pytest.raises(SchemaMismatch, match="key column 'nope'"):
        table.opened(table.made("t", key="nope"))
    with pytest.raises(SchemaMismatch, match="holdfast_part"):
        table.opened(schema="holdfast_part int")
    with pytest.raises(SchemaMismatch, match="cannot be the epoch column"):
        table.opened(epoch_column="n")
    with pytest.raises(NotSupported, match="two columns with the same name"):
        df = table.spark.sql("SELECT 1 AS a, 2 AS a")
        table.made().open(SinkContext(OWNER, df.schema, "append", table.spark))


def test_what_has_to_be_parsed_is_tried_before_the_decision(table: Table) -> None:
    table.run(
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE DOMAIN even AS bigint CHECK (VALUE % 2 = 0)",
        "CREATE TABLE orders (j jsonb, js json, u uuid, m mood, d even, v varchar(3), c char(4), "
        "us uuid[], w numeric, x numeric(12, 0), nn text NOT NULL, id serial PRIMARY KEY)",
    )
    schema = (
        "j string, js string, u string, m string, d long, v string, c string, us array<string>, w int, x int, nn string"
    )
    sink = table.opened(schema=schema)
    one = "6f1c7b1e-3c0f-4b7a-9d59-2f3b5e0a1111"
    good = ('{"a": 1}', "[1]", one, "good", 4, "abc", "ab", [one, None], 5, 2**31 - 1, "x")
    for place, value in enumerate(("{", "{", "x", "ugly", 3, "abcd", "abcde", ["x"])):
        bad = (*good[:place], value, *good[place + 1 :])
        with pytest.raises(SinkFailed):
            sink.prepare(table.spark.createDataFrame([good, bad], schema), key(1, attempt=place + 1))
    with pytest.raises(SinkFailed, match='null value in column "nn"'):
        sink.prepare(table.spark.createDataFrame([(*good[:-1], None)], schema), key(1, attempt=20))
    assert table.run("SELECT count(*) FROM orders") == [(0,)]
    nulls = (None,) * 10 + ("y",)
    staged = sink.prepare(table.spark.createDataFrame([good, nulls], schema), key(1, attempt=30))
    sink.commit(key(1, attempt=30), staged.handle)
    assert table.run(
        "SELECT j->>'a', js::text, u::text, m::text, d, v, c, us::text[], w, x, nn FROM orders WHERE d = 4"
    ) == [("1", "[1]", one, "good", 4, "abc", "ab  ", [one, None], Decimal(5), Decimal(2**31 - 1), "x")]
    assert table.run("SELECT count(*) FROM orders WHERE nn = 'y' AND j IS NULL") == [(1,)]
    assert len(table.stages()) == 1


@pytest.mark.parametrize(
    "options", [{}, {"key": ["select", 'quo"te']}, {"method": "staged", "epoch_column": "%e{}"}], ids=str
)
def test_odd_names_are_quoted(table: Table, options: dict[str, Any]) -> None:
    table.run('CREATE SCHEMA "S c.h%s"')
    names = ["select", 'quo"te', "per%cent %s", "dot.ted", "{}", "Großes Ü", "semi;--"]
    df = table.spark.createDataFrame([tuple(range(len(names)))], ", ".join(f"`{name}` int" for name in names))
    odd = '"S c.h%s"."ta""ble %s {}"'
    sink = table.made(odd, create=True, **options)
    assert sink.name == "postgres.S-c.h-s.ta-ble--s---"
    sink.open(SinkContext(OWNER, df.schema, "append", table.spark))
    table.epoch(sink, 1, df)
    (row,) = table.read("*", odd)
    assert row[: len(names)] == tuple(range(len(names)))
    assert sink.inspect(OWNER, 1).epoch == 1
    before = table.left()
    sink.prepare(df, key(2))
    assert table.left() == before + 1
    sink.abort(key(2, lease=None))
    assert table.left() == before
    assert table.run('SELECT DISTINCT target FROM "S c.h%s".holdfast_epochs') == [(odd,)]


def test_names_of_tables() -> None:
    assert TableName.read("a") == TableName(None, "a")
    assert TableName.read("S.Ta ble") == TableName("S", "Ta ble")
    assert TableName.read('"a.b"."c""d"') == TableName("a.b", 'c"d')
    for bad in ("", ".", "a.", ".a", "a.b.c", 'a"b', '"a', '""', "a" * 64, None):
        with pytest.raises(BadValue):
            TableName.read(bad)


def test_arguments_are_checked() -> None:
    dsn = "host=/nowhere"
    for wrong in ({"method": "fast"}, {"parts": 0}, {"lock_timeout": 0}, {"key": []}, {"key": ["a", "a"]}, {"key": [1]},
                  {"epoch_column": ""}, {"name": "a/b"}):  # fmt: skip
        with pytest.raises(HoldfastError):
            PostgresSink(dsn, "t", **wrong)
    assert PostgresSink(dsn, "s." + "t" * 60).name == ("postgres.s." + "t" * 60)[:64]
    with pytest.raises(NotSupported, match="it is not open"):
        PostgresSink(dsn, "t").prepare(None, key(1))


def test_what_is_written_to_is_named_without_user_and_password() -> None:
    dsn = f"postgresql://bob:{HIDDEN}@db.example:5433/shop?sslpassword={HIDDEN}"
    shop = "postgres host=db.example port=5433 dbname=shop #[0-9a-f]{8}"
    assert re.fullmatch(shop + ' "s"."t"', str(PostgresSink(dsn, "s.t").target))
    assert PostgresSink("dbname=shop", '"a.b".t').target == 'postgres dbname=shop "a.b"."t"'
    assert PostgresSink(dsn, "t", share=True).target is None


@pytest.mark.parametrize("what", ["options", "service", "user"])
def test_one_name_in_two_places_is_not_taken_for_one_table(what: str) -> None:
    """The path of schemas, the role's own one and a service's server decide which table it is; the ledger knows."""
    one, two, again = (PostgresSink(f"dbname=shop {what}={value}", "t").target for value in ("a", "b", "a"))
    assert one == again != two


def test_a_connection_whose_other_end_is_gone_is_given_up(table: Table) -> None:
    limits = {
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "tcp_user_timeout": "60000",
    }
    sink = table.opened()  # through a Unix socket, to which they mean nothing
    table.epoch(sink, 1, table.rows(1))
    told = sink._ready.task("orders").address
    assert limits.items() <= conninfo_to_dict(told.conninfo).items()
    own = {"keepalives_idle": "5", "tcp_user_timeout": "0"}
    told = Server("s", "postgresql://h/d?keepalives_idle=5&tcp_user_timeout=0", 1).address
    assert (limits | own).items() <= conninfo_to_dict(told.conninfo).items()


def test_a_stream_that_gained_a_column_still_commits_what_was_staged_before(table: Table) -> None:
    staged = table.opened(method="staged").prepare(table.rows(1), key(1))
    table.run("ALTER TABLE orders ADD more int")
    sink = table.opened(method="staged", schema=f"{SCHEMA}, more int")
    sink.commit(key(1), staged.handle)
    assert table.visible("SELECT n, text, more FROM orders") == [(1, "row 1", None)]


@pytest.mark.parametrize(
    ("kind", "value", "narrow", "cast"),
    [
        ("double", 2.5, "integer", "int"),
        ("timestamp", dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.UTC), "date", "date"),
        ("decimal(12,4)", Decimal("1.2345"), "numeric(12,2)", "decimal(12,2)"),
    ],
)
def test_a_type_that_changes_under_a_staged_epoch_changes_no_value(
    table: Table, kind: str, value: Any, narrow: str, cast: str
) -> None:
    def opened(kind: str = kind) -> PostgresSink:
        return table.opened(method="staged", schema=f"v {kind}")

    sink = opened()
    ((was,),) = table.read(
        "format_type(atttypid, atttypmod)", "pg_attribute", "WHERE attrelid = 'orders'::regclass AND attname = 'v'"
    )
    df = table.spark.createDataFrame([(value,)], f"v {kind}")
    staged = sink.prepare(df, key(1))
    table.run(f"ALTER TABLE orders ALTER v TYPE {narrow}")
    changed = re.escape(f"column 'v' of the table was {was} when the stream started, and is now {narrow}")
    with pytest.raises(SinkFailed, match=f"{changed}.*reads the table's types again"):
        sink.commit(key(1), staged.handle)
    with pytest.raises(SinkFailed, match=f"copy rows: {changed}"):
        sink.prepare(df, key(2))
    with pytest.raises(SchemaMismatch, match="which does not accept"):
        opened()
    yielding = opened(cast)  # the program gives way, and what was decided before cannot
    with pytest.raises(SinkFailed, match=re.escape(f"change column 'v' back to {was}")):
        yielding.commit(key(1), staged.handle)
    assert (table.read("v"), table.ledger()) == ([], [])
    table.run(f"ALTER TABLE orders ALTER v TYPE {was}")
    opened().commit(key(1), staged.handle)
    assert table.read("v") == [(value,)]


@pytest.mark.parametrize(
    ("kind", "made", "wider", "value"),
    [
        ("int", "integer", "numeric(12,2)", 7),
        ("decimal(5,2)", "numeric(5,2)", "numeric", Decimal("1.25")),
        ("string", "varchar(9)", "text", "seven"),
        ("string", "text", "jsonb", "7"),
        ("array<int>", "integer[]", "bigint[]", [7]),
    ],
)
def test_a_staged_epoch_goes_into_a_column_that_has_become_wider(
    table: Table, kind: str, made: str, wider: str, value: Any
) -> None:
    table.run(f"CREATE TABLE orders (v {made})")
    sink = table.opened(method="staged", schema=f"v {kind}")
    staged = sink.prepare(table.spark.createDataFrame([(value,)], f"v {kind}"), key(1))
    table.run(f"ALTER TABLE orders ALTER v TYPE {wider} USING v::{wider}")
    with pytest.raises(SinkFailed, match=r"when the stream started|is of type jsonb"):
        sink.commit(key(1), staged.handle)
    table.opened(sink, schema=f"v {kind}").commit(key(1), staged.handle)
    assert table.read("v") == [(7 if wider == "jsonb" else value,)]


def test_an_epoch_with_other_columns_is_refused(table: Table) -> None:
    sink = table.opened()
    with pytest.raises(SchemaMismatch, match="opened for"):
        sink.prepare(table.rows(1).select("text", "n"), key(1))
    assert table.left() == 0


def test_a_table_that_was_dropped_is_not_made_again_in_silence(table: Table) -> None:
    sink = table.opened()
    table.epoch(sink, 1, table.rows(1))
    table.run("DROP TABLE orders")
    with pytest.raises(SchemaMismatch, match=r'holds epochs.*restore it.*"public"."orders"'):
        table.opened(sink)
    assert table.run("SELECT to_regclass('orders')") == [(None,)]
    table.run("DELETE FROM holdfast_epochs")
    assert table.opened(sink).inspect(OWNER, 1).epoch == 0


def test_a_table_without_epochs_may_be_dropped_and_made_again(table: Table) -> None:
    table.opened()
    table.run("DROP TABLE orders")
    assert table.opened().inspect(OWNER, 1).epoch == 0
    assert table.visible() == []


def test_a_missing_psycopg_is_named_at_import() -> None:
    module = "psycopg"
    program = f"import sys; sys.modules[{module!r}] = None; import holdfast.sinks.postgres.sink"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"MissingExtra: the Python package '{module}' is required" in done.stderr
    assert "pip install 'holdfast-spark[postgres]'" in done.stderr


@pytest.mark.parametrize("module", ["adbc_driver_postgresql", "pandas", "pyarrow"])
def test_a_missing_package_of_the_executors_is_named_at_open(
    table: Table, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=module):
        table.opened()


def test_handles_and_ledgers_of_a_later_version_are_refused(table: Table) -> None:
    sink = table.opened()
    with pytest.raises(BadValue, match="handle"):
        sink.commit(key(1), {"method": "other", "rows": 1})
    table.run("COMMENT ON TABLE holdfast_epochs IS NULL")
    table.opened()
    text = "Holdfast''s ledger: which epochs the tables of this schema hold; version 9"
    table.run(f"COMMENT ON TABLE holdfast_epochs IS '{text}'")
    with pytest.raises(UnsupportedVersion, match="version 9"):
        table.opened()


# --- secrets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(table: Table) -> str:
    if not table.read("1", "pg_roles", f"WHERE rolname = '{GUARDED}'"):
        table.run(f"CREATE ROLE {GUARDED} LOGIN")
    table.run(
        f"ALTER ROLE {GUARDED} PASSWORD '{HIDDEN}'",
        f"GRANT CREATE ON SCHEMA public TO {GUARDED}",
    )
    return f"{table.pg.dsn(table.db, GUARDED)} password={{}}"


def everything(error: BaseException) -> str:
    """All that an error could show: its text, its chain, its pickled form."""
    texts, each = [], error
    while each is not None:
        texts += [str(each), repr(each), repr(vars(each))]
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return "\n".join(texts) + repr(pickle.dumps(error))


def test_a_wrong_password_names_all_but_the_password(table: Table, guarded: str) -> None:
    wrong = f"{HIDDEN}-wrong"
    with pytest.raises(SinkFailed, match="password authentication failed") as caught:
        table.opened(PostgresSink(guarded.format(wrong), "orders", create=True))
    for named in (f"host={table.pg.socket}", f"user={GUARDED}", f"dbname={table.db}"):
        assert named in str(caught.value)
    assert HIDDEN not in everything(caught.value)


@pytest.mark.parametrize("dsn", [f"postgresql://u:{HIDDEN}@127.0.0.1:1/x", f"host=127.0.0.1 port=1 password={HIDDEN}"])
def test_a_missing_server_is_said_without_the_password(table: Table, dsn: str) -> None:
    sink = PostgresSink(dsn, "orders")
    with pytest.raises(SinkFailed, match=r"host=127.0.0.1 port=1.*refused") as caught:
        table.opened(sink)
    assert HIDDEN not in everything(caught.value) + repr(sink)


@pytest.mark.parametrize(
    "dsn",
    [f"postgresql://u:{HIDDEN} x@h/d", f"nonsense {HIDDEN}", f"postgresql://u@h/d?passwort={HIDDEN}", HIDDEN.encode()],
)
def test_a_string_that_cannot_be_read_is_not_repeated(dsn: Any) -> None:
    with pytest.raises(BadValue, match="dsn") as caught:
        PostgresSink(dsn, "orders")
    assert HIDDEN not in everything(caught.value)


def test_the_password_reaches_the_executors_and_nothing_else(
    table: Table, guarded: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for method in METHODS:
        sink = PostgresSink(guarded.format(HIDDEN), method, create=True, method=method)
        table.opened(sink)
        staged = sink.prepare(table.rows(1), key(1))
        sink.commit(key(1), staged.handle)
        assert table.read("n", method) == [(1,)]
        assert HIDDEN not in repr(sink) + repr(sink._opened) + json.dumps(staged.handle)
        if method == "prepared":
            table.run("ALTER TABLE prepared ALTER n TYPE int")
            with pytest.raises(SinkFailed, match="could not copy rows: ") as caught:
                sink.prepare(table.rows(2), key(2))
            assert HIDDEN not in everything(caught.value)
            table.run(f"ALTER ROLE {GUARDED} PASSWORD 'another'")
            with pytest.raises(SinkFailed, match=r"could not copy rows: .*password authentication") as caught:
                sink.prepare(table.rows(3), key(3))
            assert HIDDEN not in everything(caught.value)
            table.run(f"ALTER ROLE {GUARDED} PASSWORD '{HIDDEN}'")
    captured = capfd.readouterr()
    assert HIDDEN not in captured.out + captured.err + "\n".join(table.told)


def test_missing_rights_are_named(table: Table, guarded: str) -> None:
    table.run("CREATE SCHEMA s", "CREATE TABLE s.orders (n bigint, text text)", f"GRANT USAGE ON SCHEMA s TO {GUARDED}")
    sink = PostgresSink(guarded.format(HIDDEN), "s.orders", method="staged")
    with pytest.raises(SinkFailed, match="permission denied for schema s"):
        table.opened(sink)
    table.run("CREATE TABLE s.helper (n bigint, text text)", f"GRANT CREATE ON SCHEMA s TO {GUARDED}")
    with pytest.raises(SinkFailed, match=r'GRANT INSERT ON "s"."orders"'):
        table.opened(sink)
    table.run(f"GRANT INSERT ON s.orders TO {GUARDED}")
    table.opened(sink)
    table.epoch(sink, 1, table.rows(1))
    assert table.visible("SELECT n FROM s.orders") == [1]
    with pytest.raises(SinkFailed, match=r'GRANT DELETE ON "s"."orders"'):
        table.opened(sink, mode="complete")
    table.run(f"REVOKE CREATE ON SCHEMA s FROM {GUARDED}")
    with pytest.raises(SinkFailed, match='GRANT CREATE ON SCHEMA "s"'):
        table.opened(sink)
    table.opened(PostgresSink(guarded.format(HIDDEN), "s.orders", name="prepares"))
