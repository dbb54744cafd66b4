# Every target sets up what it needs: on a new machine with Python 3.11, `make test` is enough.
.PHONY: help check test test-long test-store test-kafka matrix demo soak lint docs captures jar bench bench-quick bench-docs bench-peers lock clean
SHELL := /bin/sh
UV := 0.13.7

# Each version of Spark has an environment and a lock file of its own. The newest one has the plain names.
NEWEST := 4.3
OLDER := 4.1 4.2
SPARK := $(NEWEST)
ifeq ($(filter $(SPARK),$(OLDER) $(NEWEST)),)
$(error SPARK=$(SPARK) is not supported; choose one of: $(OLDER) $(NEWEST))
endif
ENV := .venv$(addprefix -,$(filter $(OLDER),$(SPARK)))
LOCK := requirements$(addprefix -,$(filter $(OLDER),$(SPARK))).lock
RUN := JAVA_HOME="$$(cat $(ENV)/java-home)" SPARK_LOCAL_IP=127.0.0.1 $(ENV)/bin/python

help:
	@echo "make check   ruff, mypy, and the tests that start neither Java nor a server nor other programs; 90 seconds"
	@echo "make test    set up and run the tests, in about 15 minutes; WORKERS=n of them at a time (3);"
	@echo "             SPARK=4.1 or 4.2 instead of 4.3"
	@echo "make test-long    run the tests that make test leaves out because they take long"
	@echo "make test-store   run the tests of pipelines and sinks on object stores, and of clusters"
	@echo "make test-kafka   fetch a Kafka broker, and run the tests that need it"
	@echo "make matrix  run the tests of crashes, checkpoints, recovery, commands and pipelines on S3 on Spark 4.1 and 4.2"
	@echo "make demo    kill a pipeline and a plain Spark job several times, and compare their outputs,"
	@echo "             then deploy a bug and undo it with a rewind; two minutes, with ARGS=--fast one"
	@echo "make soak    long tests: kill KILLS=n drivers at random moments (50), on one machine and on a cluster;"
	@echo "             kill FOUR_SINK_KILLS=n drivers (100) that write to Kafka, Delta, Iceberg and PostgreSQL, and the servers;"
	@echo "             restore each of CUTS=n checkpoints (60);"
	@echo "             stop PostgreSQL under a running pipeline for OUTAGE_S=n seconds (600);"
	@echo "             run a pipeline RUNS=n times in one session (200) and report leaks;"
	@echo "             compare the rows of two sinks over SAME_ROWS=n epochs of a query that is not deterministic (500);"
	@echo "             let two drivers commit the same epoch RACES=n times (500) to each sink, and lose LOST_ANSWERS=n answers (200)"
	@echo "             of the store to Delta and Iceberg;"
	@echo "             send 50 rounds of requests from other processes, and kill the processes and the drivers;"
	@echo "             make 3,000 random walks over run, checkpoint, rewind, undo, prune and compact;"
	@echo "             take a chain of streams back to each of ten checkpoints, and run it to the end again"
	@echo "make lint    run ruff and mypy"
	@echo "make jar     rebuild the Java class; needs javac"
	@echo "make docs    regenerate docs/reference from the code, and the benchmark pages from their results"
	@echo "make captures  make the screenshots of the page in docs/captures again; needs Chromium"
	@echo "make bench   run the benchmarks, under 30 minutes; ARGS=\"durable start\" runs only these modules;"
	@echo "             the exit code is 1 if a goal was missed"
	@echo "make bench-quick  run them with few rounds and small sizes, in about six minutes"
	@echo "make bench-docs   run all of them and update docs/benchmarks.md"
	@echo "make bench-peers  install Flink into .venv-peers, run the same jobs on both, and update docs/benchmarks-peers.md;"
	@echo "             ARGS=--quick only prints the results of a short version"
	@echo "make lock    update the lock files from pyproject.toml, and that of bench/peers"
	@echo "make clean   remove .venv and the environments beside it"

$(ENV)/ready: $(LOCK) pyproject.toml tools/setup.sh tools/find-java.sh
	@sh tools/setup.sh $(ENV) $(LOCK)

# A module stays with one worker, which has one Spark session and one PostgreSQL server for all of its modules. A test
# that waits leaves its core to the others, so there are more workers than cores. Slow modules come first (tests/conftest.py).
WORKERS ?= 3
# The reasons of skipped tests are printed at the end (-rs).
PYTEST = $(RUN) -m pytest -rs -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Spark starts faster with an archive of its classes. Java ignores an archive that does not fit.
JAVA_FAST := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable
$(ENV)/spark.jsa: $(ENV)/ready $(ENV)/s3a/ready
	@SPARK_SUBMIT_OPTS="$(JAVA_FAST) -XX:ArchiveClassesAtExit=$(CURDIR)/$@" $(RUN) tests/sparkfixture.py

# The S3 server of the tests. Where it cannot be fetched, the tests that need it are skipped, and the reason is printed.
$(ENV)/s3proxy.jar: tools/s3proxy.py | $(ENV)/ready
	@$(RUN) -m tools.s3proxy $@

# The jars with which Spark reads and writes S3, likewise.
$(ENV)/s3a/ready: tools/s3a.py tools/maven.py $(wildcard tools/s3a-*.lock) | $(ENV)/ready
	@$(RUN) -m tools.s3a fetch $(@D)

# The REST catalog of the Iceberg project, likewise.
$(ENV)/iceberg-rest/ready: tools/iceberg_rest.py tools/maven.py tools/iceberg-rest.lock | $(ENV)/ready
	@$(RUN) -m tools.iceberg_rest $(@D)

# A Kafka broker, and Spark's connector for it, likewise; only for the tests of Kafka.
$(ENV)/kafka/ready: tools/kafka.py tools/maven.py $(wildcard tools/kafka-*.lock) | $(ENV)/ready
	@$(RUN) -m tools.kafka fetch $(@D)

# Spark's connectors for Delta and Iceberg, likewise; only for the versions of Spark that have one.
$(ENV)/lake/ready: tools/lake.py tools/maven.py $(wildcard tools/lake-*.lock) | $(ENV)/ready
	@$(RUN) -m tools.lake fetch $(@D)

test: $(ENV)/spark.jsa $(ENV)/s3proxy.jar $(ENV)/iceberg-rest/ready
	@SPARK_SUBMIT_OPTS="$(JAVA_FAST) -XX:SharedArchiveFile=$(CURDIR)/$(ENV)/spark.jsa" $(PYTEST) -m "$(LANE)" $(ARGS)

# tests/lanes.py describes the lanes.
LANE = not long and not store and not kafka
test-long: LANE = long and not kafka
test-long: test
test-store: LANE = store and not long
test-store: test
test-kafka: LANE = kafka
test-kafka: $(ENV)/kafka/ready test

# What depends on Spark's own files and calls; the rest of the suite is the same on every version.
MATRIX := tests/acceptance/test_run.py $(addprefix tests/spark/test_,$(addsuffix .py,versions environment crash_matrix \
    checkpoints cuts recovery_spark restored_state log_stream blame lake_connectors lake_sources storefiles)) \
    'tests/spark/test_store_crashes.py::test_a_crash_at_a_point[stateful-decided]'
matrix:
	@for version in $(OLDER); do \
	    echo "Spark $$version" && $(MAKE) --no-print-directory .venv-$$version/lake/ready test SPARK=$$version \
	        LANE="not long and not kafka" ARGS="$(MATRIX) $(ARGS)" || exit 1; \
	done

check: WORKERS = 2
check: lint
	@$(PYTEST) -q -m "not jvm and not postgres and not processes and not slow" \
	    --ignore=tests/spark --ignore=tests/faults --ignore=tests/web $(ARGS)

demo: $(ENV)/ready
	@HOLDFAST_CLASS_ARCHIVE=$(CURDIR)/$(ENV)/classes $(RUN) -m holdfast demo $(ARGS)

KILLS ?= 50
FOUR_SINK_KILLS ?= 100
CUTS ?= 60
OUTAGE_S ?= 600
RUNS ?= 200
SAME_ROWS ?= 500
RACES ?= 500
LOST_ANSWERS ?= 200
soak: $(ENV)/ready $(ENV)/s3proxy.jar $(ENV)/s3a/ready $(ENV)/kafka/ready
	@CUTS=$(CUTS) RESTORED=$(CUTS) $(RUN) -m pytest tests/spark/test_cuts.py --timeout 0 -q -s
	@STORE_CUTS=$(CUTS) $(RUN) -m pytest tests/spark/test_store_cuts.py -k each_checkpoint --timeout 0 -q -s
	@KILLS=$(KILLS) $(RUN) -m pytest tests/faults/test_pipeline_killed.py -k random_moments --timeout 0 -q
	@KILLS=$(KILLS) $(RUN) -m pytest tests/faults/test_cluster.py -k random_kills --timeout 0 -q
	@KAFKA_KILLS=$(KILLS) $(RUN) -m pytest tests/faults/test_kafka_killed.py --timeout 0 -q -s
	@FOUR_SINK_KILLS=$(FOUR_SINK_KILLS) $(RUN) -m pytest tests/faults/test_four_sinks_killed.py -k "servers or control" \
	    --timeout 0 -q -s
	@OUTAGE_S=$(OUTAGE_S) $(RUN) -m pytest tests/spark/test_outages.py -k long_outage --timeout 0 -q -s
	@RUNS=$(RUNS) $(RUN) -m pytest tests/spark/test_leaks.py -k runs_leave --timeout 0 -q -s
	@CRASHES=100 $(RUN) -m pytest tests/spark/test_postgres_pipeline.py -k many_crashes --timeout 0 -q
	@SAME_ROWS=$(SAME_ROWS) $(RUN) -m pytest tests/spark/test_several_sinks.py -k not_deterministic --timeout 0 -q
	@HOLDFAST_SOAK=1 $(RUN) -m pytest tests/faults/test_control_killed.py --timeout 0 -q -s
	@HOLDFAST_SOAK=1 $(RUN) -m pytest tests/unit/test_rewind_walks.py --timeout 0 -q
	@HOLDFAST_SOAK=1 $(RUN) -m pytest tests/spark/test_rewind_chain.py --timeout 0 -q -s
	@HOLDFAST_SOAK=1 $(RUN) -m pytest tests/unit tests/faults/test_worker_killed.py tests/faults/test_log_killed.py \
	    -k "eight_threads or forgotten or random_moments or anyorder" --timeout 0 -q
	@HOLDFAST_ICEBERG_ROUNDS=$(RACES) $(RUN) -m pytest tests/faults/test_iceberg_races.py -k "not lost" --timeout 0 -q
	@HOLDFAST_ICEBERG_ROUNDS=$(LOST_ANSWERS) $(RUN) -m pytest tests/faults/test_iceberg_races.py -k lost --timeout 0 -q
	@HOLDFAST_DELTA_ROUNDS=$(RACES) $(RUN) -m pytest tests/faults/test_delta_races.py -k "not lost" --timeout 0 -q
	@HOLDFAST_DELTA_ROUNDS=$(LOST_ANSWERS) $(RUN) -m pytest tests/faults/test_delta_races.py -k lost --timeout 0 -q
	@HOLDFAST_SINK_ROUNDS=$(RACES) $(RUN) -m pytest tests/faults/test_sink_races.py -k at_once --timeout 0 -q
	@KAFKA_RACES=$(RACES) $(RUN) -m pytest tests/contract/test_kafka_commits.py -k the_same_moment --timeout 0 -q
	@HOLDFAST_SOAK=1 HOLDFAST_FUZZ_SEED=random HOLDFAST_FUZZ_FACTOR=20 $(RUN) -m pytest tests/formats/test_fuzz.py \
	    tests/formats/test_fuzz_command.py --timeout 0 -q

lint: $(ENV)/ready
	@$(RUN) -m ruff format --check .
	@$(RUN) -m ruff check .
	@$(RUN) -m mypy

docs: $(ENV)/ready
	@$(RUN) -m tools.reference $(ARGS)
	@$(RUN) -m bench.report $(ARGS)

captures: $(ENV)/ready
	@$(RUN) tools/page_captures.py

jar: $(ENV)/ready
	@$(RUN) -m tools.jar

bench: $(ENV)/ready $(ENV)/s3proxy.jar $(ENV)/s3a/ready $(ENV)/kafka/ready
	@$(RUN) -m bench $(ARGS)

bench-quick: $(ENV)/ready $(ENV)/kafka/ready
	@$(RUN) -m bench --quick $(ARGS)

bench-docs: $(ENV)/ready $(ENV)/s3proxy.jar $(ENV)/s3a/ready $(ENV)/kafka/ready
	@$(RUN) -m bench --write $(ARGS)

.venv-peers/ready: bench/peers/requirements.lock bench/peers/setup.sh
	@PEERS_PYTHON="$(PEERS_PYTHON)" sh bench/peers/setup.sh

bench-peers: $(ENV)/ready .venv-peers/ready
	@$(RUN) -m bench --peers $(if $(findstring --quick,$(ARGS)),,--write) $(ARGS)

# The lock files contain no index URL, so that they work with any mirror. Those for older versions of Spark begin with the
# pins of requirements.lock, and differ only where that Spark needs it.
COMPILE = .venv/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version
lock: .venv/ready
	.venv/bin/python -m pip install --quiet uv==$(UV)
	$(COMPILE) 3.11 --all-extras --group dev pyproject.toml -o requirements.lock
	for version in $(OLDER); do \
	    cp requirements.lock requirements-$$version.lock && echo "pyspark==$$version.*" | \
	    $(COMPILE) 3.11 --all-extras --group dev pyproject.toml -c - -o requirements-$$version.lock || exit 1; \
	done
	$(COMPILE) 3.10 bench/peers/requirements.in -o bench/peers/requirements.lock

clean:
	rm -rf .venv .venv-peers $(addprefix .venv-,$(OLDER))
