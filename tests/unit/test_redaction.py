import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast._redaction import _KEY_NAME, REDACTED, redacted, redacted_text


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "kafka.ssl.keystore.password",
        "PASSWD",
        "fs.s3a.secret.key",
        "fs.s3a.access.key",
        "api_key",
        "apiKey",
        "token",
        "sasl.jaas.config",
        "fs.azure.account.key.x",
        "credentials",
        "private_key",
        "authorization",
        "pw",
        "db.pass",
        "sslkey",
    ],
)
def test_values_behind_secret_names_are_struck_out(name: str) -> None:
    assert redacted({name: "hunter2"}) == {name: REDACTED}


@pytest.mark.parametrize("name", ["key", "keyBy", "topic", "startingOffsets", "author", "table"])
def test_other_values_stand(name: str) -> None:
    assert redacted({name: "value"}) == {name: "value"}


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:hunter2@host/db",
        "postgres://me:hun/ter2@x:hunter2@host/db",
        "host=h user=me password=hunter2 dbname=d",
        "host=h password = 'hunter2 with \\' quote' dbname=d",
        "jdbc:postgresql://host/db?user=me&password=hunter2",
        "Server=h;Pwd=hunter2;Database=d",
        "host=h sslpassword=hunter2",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hunter2==;EndpointSuffix=x",
        "http://host/path?token=hunter2&x=1",
        '{"user": "me", "password": "hunter2"}',
        "jdbc:oracle:thin:me/hunter2@host:1521/db",
        "Authorization: Bearer hunter2.abc",
        "password='it''s hunter2' dbname=d",
        "me:hunter2@host",
        "me:hunter2@host:5432/db?sslmode=require",
        "cannot connect to me:hunter2@db.example.com: refused",
        "dsn='me:hun@ter:hunter2@host'",
        "me@example.com:hunter2@host",
        "corp/me:hunter2@[::1]:5432",
        "brokers=a:hunter2@k1:9092,b:hunter2@k2:9092",
        ":hunter2@host",
        "me:/hunter2@host",
        "https://hunter2@github.com/me/x",
        "cannot clone git+https://hunter2@host:8443/x: refused",
        "host=h pw=hunter2",
        "user=me pass=hunter2",
        "db_pw: hunter2",
        "host=h sslkey=hunter2",
        "private_key=hunter2",
        "fs.s3a.access.key=hunter2",
    ],
)
def test_passwords_inside_addresses_are_struck_out(text: str) -> None:
    assert "hunter2" not in redacted_text(text)
    assert REDACTED in redacted_text(text)


def test_an_address_without_a_password_stands() -> None:
    for text in (
        "postgresql://me@host/db",
        "file:///data/x",
        "file:/data/orders@2024/part-0",
        "jar:file:/opt/app@1.jar",
        "s3a://bucket/orders@2024",
        "abfss://container@account.dfs.core.windows.net/x",
        "https://host/orders@2024",
        "bypass=1",
        "kafka:9092",
        "me@example.com",
        "asked by: me@example.com",
        '{"topic":{"0":5},"who":"me@example.com"}',
        "org.apache.spark.sql.Dataset@5ae1f3",
    ):
        assert redacted_text(text) == text


NO_SPACE = st.text(st.characters(blacklist_categories=("Z", "C")), max_size=12)
AROUND = st.sampled_from(["", " ", "cannot connect to ", "dsn=", "'", '"', "(", "host: ", "x\n", "a@b "])


@given(
    AROUND,
    NO_SPACE.filter(lambda user: ":" not in user),
    NO_SPACE,
    NO_SPACE,
    st.from_regex(r"[\w\[][\w.:\]/-]*", fullmatch=True),
)
def test_a_password_between_a_colon_and_an_at_sign_is_struck_out(
    before: str, user: str, head: str, tail: str, host: str
) -> None:
    """Whatever stands around it, and whatever signs are in it."""
    text = f"{before}{user}:{head}hunter2{tail}@{host} and so on"
    assume(not head.startswith("/"))  # of an address with a scheme, or a path
    assume(not user.endswith(("'", '"')))  # a key in JSON
    found = redacted_text(text)
    assert "hunter2" not in found
    if not re.search(_KEY_NAME, f"{before}{user}", re.IGNORECASE):  # the value of a key such as `token` is the address
        assert found.endswith(f"@{host} and so on") or "@" in host
    assert redacted_text(found) == found


@given(st.text())
def test_text_without_an_at_sign_or_a_telling_name_stands(text: str) -> None:
    assume(not re.search("@|pass|pw|secret|token|cred|key|sign|bearer|basic", text, re.IGNORECASE))
    assert redacted_text(text) == text
