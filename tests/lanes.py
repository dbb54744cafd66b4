"""The lane of long tests: `make test` leaves them out, `make test-long` and CI run them.

Rule: a test is long if it takes many seconds and repeats, with other sinks, jobs, moments or processes, what a shorter
test of the other lane shows. `conftest.py` refuses an entry that matches no test.
"""

import re

_LONG = (
    # folder/module, what of it; all of it if there is no pattern
    ("acceptance/test_distribution", ""),
    ("acceptance/test_docs", r"top_to_bottom\[docs/plain-spark"),  # the same is in test_adopt_spark
    ("acceptance/test_run", "again_and_again|as_soon_as|for_all_processes|reader_goes_away|by_sys_exit"),
    ("acceptance/test_signals", "a_second_signal"),
    ("faults/test_class_archive", ""),  # unit/test_class_archive needs no JVM
    ("faults/test_compaction_killed", "before_each_call"),
    ("faults/test_control_killed", ""),  # unit/test_control and acceptance/test_control_command need no Spark
    ("faults/test_pipeline_killed", "an_executor_killed"),
    ("faults/test_power_loss", r"at_a_point\[(flat|state-)"),
    ("faults/test_rewind_killed", "before_each_call"),
    ("spark/test_adopt_spark", r"\[not-written-|\[written-(?!files|counts|totals_rocksdb)"),
    ("spark/test_backfill", r"whatever_dies\[postgres-staged"),
    ("spark/test_copied_repository", "not_taken_for_a_copy|started_later"),
    ("spark/test_crash_matrix", "clears_up|join_of_two_streams"),
    ("spark/test_disaster", r"rows/spark/state"),
    ("spark/test_doctor", ""),  # unit/test_doctor has folders that need no Spark
    ("spark/test_examples", "killed|whatever_dies"),
    ("spark/test_fork", "elsewhere"),
    ("spark/test_leaks", ""),
    ("spark/test_localfiles", "which_sessions"),
    ("spark/test_postgres_pipeline", "many_crashes"),
    ("spark/test_rewind_chain", "only_totals"),
    ("spark/test_rewind_spark", r"as_a_process|interrupted_rewind\[(?!rewind decided|sink taken back)"),
)


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
