"""The profile of a user in the files of AWS: access keys, region and endpoint, where the environment has none.

    ~/.aws/credentials    [name]                  or the file in AWS_SHARED_CREDENTIALS_FILE
    ~/.aws/config         [profile name]          or the file in AWS_CONFIG_FILE

Rules:
- `AWS_PROFILE` names the profile; otherwise it is `default`. In both files it is one profile, and the first one wins.
- Access keys in the environment win, and so does a web identity: then only region and endpoint are taken from here.
- Only access keys are read. A profile with a role, single sign-on or a program instead is refused if `AWS_PROFILE`
  names it, and ignored otherwise: the role of the machine may be meant.
- The values are passed on to the client, and never to a file, a log or an error.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import BadValue

_FILES = (  # the variable, the default, and the name of a profile's section
    ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", "{}"),
    ("AWS_CONFIG_FILE", ".aws/config", "profile {}"),
)
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")  # variables that win over a profile
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_CHOSEN = "AWS_PROFILE"
_DEFAULT = "default"
_KEY_ID, _SECRET, _TOKEN = "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
WEB_IDENTITY = "AWS_WEB_IDENTITY_TOKEN_FILE"
_EXPORT = "aws configure export-credentials --format env"


def first_set(names: Sequence[str], environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of the first of these variables that is set and not empty."""
    return next((environment[name] for name in names if environment.get(name)), None)


@dataclass(frozen=True, slots=True)
class AwsProfile:
    """What a profile adds to the environment."""

    keys: Mapping[str, str] = field(default_factory=dict, repr=False)  # as options of the client; empty: not from here
    region: str | None = None
    endpoint: str | None = None


def aws_profile(environment: Mapping[str, str] = os.environ) -> AwsProfile:
    """Return the profile that is in use, or an empty one; raise `BadValue` if it is chosen and cannot be used."""
    name = environment.get(_CHOSEN) or _DEFAULT
    found = _read(name, environment)
    wanted = not environment.get("AWS_ACCESS_KEY_ID") and not environment.get(WEB_IDENTITY)
    keys: dict[str, str] = {}
    if wanted and found.get(_KEY_ID) and found.get(_SECRET):
        keys = {"access_key_id": found[_KEY_ID], "secret_access_key": found[_SECRET]}
        keys |= {"session_token": found[_TOKEN]} if found.get(_TOKEN) else {}
    elif wanted and environment.get(_CHOSEN):
        why = (
            "it contains no access keys, and no other kind of credentials is read" if found else "there is no such one"
        )
        raise BadValue(what=_CHOSEN, value=name, why=why, do=f"correct {_CHOSEN}, or pass its keys on: {_EXPORT}")
    return AwsProfile(keys, found.get("region") or None, found.get("endpoint_url") or None)


def _read(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for variable, default, section in _FILES:
        path = Path(environment.get(variable) or Path.home() / default).expanduser()
        parser = configparser.ConfigParser(interpolation=None, strict=False, default_section="")
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            why = f"it cannot be read: {type(error).__name__}"  # the text of the error may quote a line
            raise BadValue(what=variable, value=str(path), why=why, do="correct the file") from None
        here = name if name == _DEFAULT else section.format(name)
        if parser.has_section(here):
            found = dict(parser.items(here)) | found
    return found
