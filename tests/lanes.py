"""The lanes that `make test` leaves out: long tests (`make test-long`), whole pipelines on object stores and on
clusters (`make test-store`), and the tests that need a Kafka broker (`make test-kafka`). CI runs all of them. The
contract of a repository on S3 is tested by `make test`.

Rule: a test is long if it takes many seconds and repeats, with other sinks, jobs, moments or processes, what a shorter
test of the other lane shows. `conftest.py` refuses an entry that matches no test.
"""

import re

_LONG = (
    # folder/module, what of it; all of it if there is no pattern
    ("acceptance/test_demo", ""),  # unit/test_demo needs no Spark
    ("acceptance/test_distribution", ""),
    ("acceptance/test_docs", r"top_to_bottom\[docs/(checkpoints|compaction|howto|pipelines|plain-spark)"),
    (
        "acceptance/test_run",
        "again_and_again|as_soon_as|for_all_processes|reader_goes_away|by_sys_exit|outage_is|a_second_signal|while_spark_starts",
    ),
    ("acceptance/test_signals", "a_second_signal"),
    ("faults/test_cluster", "killed|wakes_up|random_kills|unfit"),
    ("faults/test_class_archive", ""),  # unit/test_class_archive needs no JVM
    ("faults/test_compaction_killed", "before_each_call"),
    ("faults/test_control_killed", ""),  # unit/test_control and acceptance/test_control_command need no Spark
    ("faults/test_pipeline_killed", "an_executor_killed|paused_at_any_point"),  # test_zombies needs no Spark
    ("faults/test_power_loss", r"at_a_point\[(flat|state-)"),
    ("faults/test_rewind_killed", "before_each_call"),
    ("faults/test_store_races", r"\[long"),
    ("faults/test_store_killed", ""),  # spark/test_store_crashes has every point
    ("faults/test_take_back_killed", "before_each_call"),
    ("faults/test_zombies", "delta replace"),
    ("spark/test_adopt_spark", ""),  # unit/test_adopt needs no Spark
    ("spark/test_backfill", r"whatever_dies\[postgres|after_a_kill"),
    ("spark/test_blame", "session_that_is_lost"),
    ("spark/test_compaction", "at_work|columns_that_changed|keep_their_cuts"),
    ("spark/test_copied_repository", ""),
    ("spark/test_crash_matrix", r"clears_up|join_of_two_streams|one_stream\[.*-[2-9]"),
    ("spark/test_disaster", r"rows/spark/state"),
    ("spark/test_doctor", ""),  # unit/test_doctor has folders that need no Spark
    ("spark/test_examples", "killed|whatever_dies"),
    ("spark/test_fork", "elsewhere|cleans_up|bad_arguments|are_refused"),
    ("spark/test_leaks", ""),
    ("spark/test_localfiles", "which_sessions"),
    ("spark/test_outages", "waited_for|long_outage|neither_lost"),
    ("spark/test_postgres_pipeline", "many_crashes|server_killed"),
    ("spark/test_store_crashes", "clears_up"),
    ("spark/test_store_outages", "DROP_BEFORE"),
    ("spark/test_rewind_chain", "only_totals"),
    ("spark/test_rewind_spark", r"as_a_process|chained|interrupted_rewind\[(?!rewind decided|sink taken back)"),
)


def is_of_store(module: str) -> bool:
    """Whether a module tests pipelines on object stores or clusters."""
    return module.startswith(("test_store_", "test_storefiles", "test_cluster")) or module == "test_take_back_store"


def is_long(node: str) -> bool:
    """Whether a test, given by its node id, belongs to the lane of long tests."""
    return any(f"{module}.py" in node and re.search(pattern, node) for module, pattern in _LONG)


def stale(nodes: list[str]) -> list[str]:
    """Return the entries that match no test, given all tests of some modules."""
    return [
        f"{module}: {pattern}"
        for module, pattern in _LONG
        if any(f"{module}.py" in node for node in nodes)
        and not any(f"{module}.py" in node and re.search(pattern, node) for node in nodes)
    ]
