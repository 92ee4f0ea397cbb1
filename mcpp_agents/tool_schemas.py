"""Validity of the schemas that participants offer for their tools' arguments.

A schema comes from any participant, and is checked by everyone who lists it. So each is checked
once, by a compiled validator: 0.1 ms for 20 kB, where a validator in Python took 55.
"""

from hashlib import sha256
from typing import Any, Final

import msgspec
from jsonschema_rs import Draft202012Validator

__all__ = ["is_valid_schema"]

# Verdicts kept, by the schemas' digests: more than a pod has tools.
_MAX_VERDICTS: Final = 16_384

_metaschema = Draft202012Validator(
    {"$ref": "https://json-schema.org/draft/2020-12/schema"}, validate_formats=True
)
_verdicts: dict[bytes, bool] = {}


def is_valid_schema(schema: Any) -> bool:
    """Return whether a JSON value is a valid JSON Schema, whatever dialect it claims to be in."""
    digest = sha256(msgspec.json.encode(schema, order="sorted")).digest()
    verdict = _verdicts.get(digest)
    if verdict is None:
        if len(_verdicts) >= _MAX_VERDICTS:
            del _verdicts[next(iter(_verdicts))]
        verdict = _verdicts[digest] = _check(schema)
    return verdict


def _check(schema: Any) -> bool:
    try:
        return _metaschema.is_valid(schema)
    except ValueError:  # a number that the validator cannot represent
        return False
