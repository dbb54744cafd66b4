"""The lanes that `make test` leaves out: long tests (`make test-long`); pipelines and sinks on object stores and on
clusters (`make test-store`); and the tests that need a Kafka broker (`make test-kafka`). CI runs all of them. The
contract of a repository on S3 is tested by `make test`.

Rules:
1. A test is long if it takes many seconds and repeats, with other sinks, jobs, moments or processes, what a shorter
   test of the other lane shows.
2. A test is slow if it tries very many cases, or opens many tables, and takes longer than `make check` can wait for.
   `make test` runs it.
3. `conftest.py` refuses an entry that matches no test.
"""

import re

LANES = {  # by their mark: what they contain, and the command that runs them
    "long": ("long tests", "make test-long"),
    "store": ("pipelines on object stores, and clusters", "make test-store"),
    "kafka": ("tests with a Kafka broker", "make test-kafka"),
}
_LONG = (
    # folder/module, what of it; all of it if there is no pattern
    ("acceptance/test_demo", ""),  # unit/test_demo needs no Spark
    ("acceptance/test_distribution", ""),
    ("acceptance/test_docs", r"top_to_bottom\[docs/(checkpoints|compaction|going-back|howto|pipelines|plain-spark)"),
    ("acceptance/test_packages", r"without_one_package.*\[(?!py)|names_the_extra|another_pyspark.*\[(?!4\.0)"),
    (
        "acceptance/test_run",
        "again_and_again|as_soon_as|for_all_processes|reader_goes_away|by_sys_exit|outage_is|a_second_signal|while_spark_starts"
        "|a_document_a_line|a_pipe_gets_lines|the_page_is_served",
    ),
    ("acceptance/test_signals", "a_second_signal"),
    ("acceptance/test_typing", "a_typo|a_sound_program"),
    ("contract/test_delta_tables", "an_outage"),
    ("contract/test_iceberg_rest", ""),  # test_take_back_iceberg has the same with another catalog
    ("contract/test_object_repository", "cannot_be_found_out|HANG"),
    ("contract/test_take_back_postgres", "TestStaged"),
    ("faults/test_cluster", "killed|wakes_up|random_kills|unfit"),
    ("faults/test_class_archive", ""),  # unit/test_class_archive needs no JVM
    ("faults/test_compaction_killed", "before_each_call"),
    ("faults/test_control_killed", ""),  # unit/test_control and acceptance/test_control_command need no Spark
    ("faults/test_delta_races", "a_lost_answer|two_drivers_and_another"),
    ("faults/test_iceberg_races", "a_lost_answer"),
    ("faults/test_pipeline_killed", ""),  # spark/test_crash_matrix has every point; test_zombies needs no Spark
    ("faults/test_power_loss", r"at_a_point\[(flat|state)"),
    ("faults/test_rewind_killed", "before_each_call"),
    ("faults/test_store_races", r"\[long"),
    ("faults/test_store_killed", ""),  # spark/test_store_crashes has every point
    ("faults/test_take_back_killed", "before_each_call|Delta table"),
    ("faults/test_zombies", "delta|postgres staged"),  # contract/test_take_back_delta has its moments
    ("spark/test_adopt_spark", ""),  # unit/test_adopt needs no Spark
    ("spark/test_backfill", r"whatever_dies\[postgres|after_a_kill"),
    ("spark/test_blame", "session_that_is_lost"),
    ("spark/test_broken_pages", ""),  # web/test_browser has pipelines that need no Spark
    (
        "spark/test_checkpoints",
        "drain_has_the_time|idle_slow|was_replaced|not_started_enter|every_stream_of_a_chain",
    ),
    ("spark/test_compaction", r"at_work|columns_that_changed|keep_their_cuts|each_format\[(?!parquet)"),
    ("spark/test_copied_repository", ""),
    (
        "spark/test_crash_matrix",
        r"clears_up|join_of_two_streams|one_stream\[.*-(?!1\])|at_a_point\[(flat|marker|partitioned|postgres.*by-driver)",
    ),
    ("spark/test_dead_letters", "change_with_each"),
    ("spark/test_delta_sink", "Partitioned|Upsert|Replace"),
    ("spark/test_disaster", r"rows/spark/state"),
    ("spark/test_doctor", ""),  # unit/test_doctor has folders that need no Spark
    ("spark/test_examples", "killed|whatever_dies"),
    ("spark/test_fork", ""),
    ("spark/test_iceberg_sink", "Partitioned"),
    ("spark/test_leaks", ""),
    ("spark/test_localfiles", "which_sessions"),
    ("spark/test_log_retention", ""),  # unit/test_trimming needs no Spark
    ("spark/test_outages", "waited_for|long_outage|neither_lost|of_a_source"),
    ("spark/test_page_views", ""),  # web/test_browser has the same views of pipelines that need no Spark
    ("spark/test_postgres_pipeline", "many_crashes|server_killed|told_nowhere"),
    ("spark/test_log_stream", "a_rewind_of_the_log"),
    ("spark/test_supervision", "two_poison"),
    ("spark/test_marker_contract", "DuckDb|Redis"),  # spark/test_own_databases runs them
    ("spark/test_postgres_sink", "a_retried_task|TestReplace|TestUpsert"),
    ("spark/test_postgres_small", "StagedByDriver|UpsertByDriver|was_away_between"),
    ("spark/test_several_sinks", "not_deterministic"),
    ("spark/test_sink_contract", "SqliteReplace|SqliteUpsert"),
    ("spark/test_staged_damage", r"\[(?!parquet)"),
    ("spark/test_store_crashes", "clears_up"),
    ("spark/test_store_outages", "DROP_BEFORE"),
    ("spark/test_rewind_chain", ""),  # unit/test_rewind_walks needs no Spark
    (
        "spark/test_rewind_spark",
        r"as_a_process|chained|epoch_in_doubt|stage_goes_back|interrupted_rewind\[(?!rewind decided|sink taken back)",
    ),
)

_SLOW = (
    ("acceptance/test_reference", "pages"),
    ("contract/test_iceberg_pipeline", ""),
    ("contract/test_iceberg_tables", ""),
    ("contract/test_take_back_iceberg", ""),
    ("formats/test_fuzz", ""),
    ("formats/test_fuzz_command", ""),
    ("formats/test_sweep", ""),
    ("unit/test_restart_cost", ""),
    ("unit/test_rewind_histories", ""),
    ("unit/test_rewind_model", "no_interleaving"),
    ("unit/test_rewind_walks", ""),
    ("unit/test_store_index", "few_requests"),
)


def left_out(expression: str) -> str | None:
    """Return a line that names the lanes that an expression for `-m` leaves out; `None` if it leaves out none."""
    named = [f"{what} ({how})" for mark, (what, how) in LANES.items() if f"not {mark}" in expression]
    return f"left out: {'; '.join(named)}" if named else None


def is_of_store(node: str) -> bool:
    """Whether a test, given by its node id, is one of pipelines or sinks on object stores, or of clusters."""
    return re.search(r"/test_(store_|storefiles|cluster|take_back_store)|OnS3|\[s3-faults", node) is not None


def is_long(node: str) -> bool:
    """Whether a test, given by its node id, belongs to the lane of long tests."""
    return _named(_LONG, node)


def is_slow(node: str) -> bool:
    """Whether a test, given by its node id, is too slow for `make check`."""
    return _named(_SLOW, node)


def stale(nodes: list[str]) -> list[str]:
    """Return the entries that match no test, given all tests of some modules."""
    return [
        f"{module}: {pattern}"
        for module, pattern in _LONG + _SLOW
        if any(f"{module}.py" in node for node in nodes)
        and not any(_named(((module, pattern),), node) for node in nodes)
    ]


def _named(entries: tuple[tuple[str, str], ...], node: str) -> bool:
    return any(f"{module}.py" in node and re.search(pattern, node) for module, pattern in entries)
