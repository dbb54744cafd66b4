"""The files of a Spark checkpoint folder, read without Spark: logs, source logs and state stores.

Nothing in this package imports PySpark, so it works where Spark is not installed. Each format has one reader, which
pipelines, snapshots and `holdfast doctor` share; they read through a `SparkFolder`. No file is written, and only
`LocalSparkFolder` removes some.
"""
