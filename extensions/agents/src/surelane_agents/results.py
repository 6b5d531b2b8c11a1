"""What a model gets of a tool's result."""

import json
from typing import Any

from pydantic_ai.messages import BinaryContent
from pydantic_core import to_jsonable_python

LONGEST_RESULT = 50_000
"""Characters of a tool's result that the model gets. The rest is cut."""


def result_shortened(result: object) -> Any:  # noqa: ANN401 - any JSON
    """Return a tool's result as JSON of a bounded size."""
    plain = to_jsonable_python(_without_bytes(result), fallback=str)
    text = json.dumps(plain, ensure_ascii=False)
    if len(text) <= LONGEST_RESULT:
        return plain
    return f"{text[:LONGEST_RESULT]}… (cut; the whole result has {len(text):,} characters)"


def _without_bytes(result: object) -> object:
    if isinstance(result, BinaryContent):
        return f"({result.media_type} of {len(result.data):,} bytes)"
    if isinstance(result, dict):
        return {key: _without_bytes(each) for key, each in result.items()}
    return [_without_bytes(each) for each in result] if isinstance(result, list) else result
