"""The only code that depends on Spark's internals, for the versions that `_extras` names (see `versions`).

It uses the following parts of Spark that are not public API: the JVM of a session (`_jvm`, `_jdf`, `_jsc`), class names
of logical plans, settings by their full names, the RDDs of batches and of local checkpoints, and a metric of a physical
plan.
"""

from holdfast.spark.adapter.cluster import registered_cores as registered_cores
from holdfast.spark.adapter.cluster import settings_of_bucket as settings_of_bucket
from holdfast.spark.adapter.connectors import missing_connector as missing_connector
from holdfast.spark.adapter.few_rows import few_rows as few_rows
from holdfast.spark.adapter.freezing import can_freeze_on_use as can_freeze_on_use
from holdfast.spark.adapter.freezing import frozen as frozen
from holdfast.spark.adapter.freezing import frozen_on_use as frozen_on_use
from holdfast.spark.adapter.jvmlock import JvmLock as JvmLock
from holdfast.spark.adapter.kafka import KafkaClient as KafkaClient
from holdfast.spark.adapter.kafka_unread import KafkaUnread as KafkaUnread
from holdfast.spark.adapter.lake import LakeInput as LakeInput
from holdfast.spark.adapter.lake import NotComparable as NotComparable
from holdfast.spark.adapter.lake import TableUnreadable as TableUnreadable
from holdfast.spark.adapter.lake import lake_inputs as lake_inputs
from holdfast.spark.adapter.launching import deaf_to_sigterm as deaf_to_sigterm
from holdfast.spark.adapter.limited import LimitedReader as LimitedReader
from holdfast.spark.adapter.plans import file_inputs as file_inputs
from holdfast.spark.adapter.plans import inputs as inputs
from holdfast.spark.adapter.plans import is_observed as is_observed
from holdfast.spark.adapter.plans import is_stateful as is_stateful
from holdfast.spark.adapter.plans import require_packages as require_packages
from holdfast.spark.adapter.plans import require_trigger as require_trigger
from holdfast.spark.adapter.plans import run_for_nothing as run_for_nothing
from holdfast.spark.adapter.plans import source_names as source_names
from holdfast.spark.adapter.plans import source_paths as source_paths
from holdfast.spark.adapter.plans import state_operators as state_operators
from holdfast.spark.adapter.queries import Batches as Batches
from holdfast.spark.adapter.queries import BatchFailed as BatchFailed
from holdfast.spark.adapter.queries import end_idle_monitors as end_idle_monitors
from holdfast.spark.adapter.queries import ends_within as ends_within
from holdfast.spark.adapter.queries import finish_available as finish_available
from holdfast.spark.adapter.queries import full_text as full_text
from holdfast.spark.adapter.queries import has_started_queries as has_started_queries
from holdfast.spark.adapter.queries import is_gone as is_gone
from holdfast.spark.adapter.queries import is_idle as is_idle
from holdfast.spark.adapter.queries import is_interrupt as is_interrupt
from holdfast.spark.adapter.queries import progress_of as progress_of
from holdfast.spark.adapter.queries import session_end as session_end
from holdfast.spark.adapter.queries import start_query as start_query
from holdfast.spark.adapter.queries import stop_from_within as stop_from_within
from holdfast.spark.adapter.queries import stop_session as stop_session
from holdfast.spark.adapter.settings import FAST_FILES as FAST_FILES
from holdfast.spark.adapter.settings import FILE_MANAGER as FILE_MANAGER
from holdfast.spark.adapter.settings import POLLING_DELAY as POLLING_DELAY
from holdfast.spark.adapter.settings import PROVIDER as PROVIDER
from holdfast.spark.adapter.settings import RETAIN as RETAIN
from holdfast.spark.adapter.settings import RETAINED as RETAINED
from holdfast.spark.adapter.settings import STATE as STATE
from holdfast.spark.adapter.settings import STATE_STORE as STATE_STORE
from holdfast.spark.adapter.settings import STORE_QUERY as STORE_QUERY
from holdfast.spark.adapter.settings import adopted_settings as adopted_settings
from holdfast.spark.adapter.settings import folder_mode as folder_mode
from holdfast.spark.adapter.settings import is_local as is_local
from holdfast.spark.adapter.settings import let_replace_sources as let_replace_sources
from holdfast.spark.adapter.settings import quiet as quiet
from holdfast.spark.adapter.settings import require_classic as require_classic
from holdfast.spark.adapter.settings import require_retention as require_retention
from holdfast.spark.adapter.settings import require_store_settings as require_store_settings
from holdfast.spark.adapter.settings import require_store_state as require_store_state
from holdfast.spark.adapter.settings import setting as setting
from holdfast.spark.adapter.settings import state_reading as state_reading
from holdfast.spark.adapter.settings import state_settings as state_settings
from holdfast.spark.adapter.settings import with_settings as with_settings
from holdfast.spark.adapter.storefiles import STORE_FILES as STORE_FILES
from holdfast.spark.adapter.storefiles import StoreFiles as StoreFiles
from holdfast.spark.adapter.storefiles import hadoop_version as hadoop_version
from holdfast.spark.adapter.storefiles import has_class as has_class
from holdfast.spark.adapter.storefiles import serve_root as serve_root
from holdfast.spark.adapter.storefiles import set_for_bucket as set_for_bucket
from holdfast.spark.adapter.threads import job_properties as job_properties
from holdfast.spark.adapter.versions import FACTS as FACTS
