from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sparkfixture import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    return session()
