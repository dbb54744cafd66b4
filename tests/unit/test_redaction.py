import pytest

from holdfast.redaction import REDACTED, redacted, redacted_text


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
    ],
)
def test_passwords_inside_addresses_are_struck_out(text: str) -> None:
    assert "hunter2" not in redacted_text(text)
    assert REDACTED in redacted_text(text)


def test_an_address_without_a_password_stands() -> None:
    for text in ("postgresql://me@host/db", "file:///data/x", "kafka:9092", "a:b@c"):
        assert redacted_text(text) == text
