"""A filter that says nothing is refused: it must not mean no filter."""

import pytest
from pydantic import ValidationError

from surelane_operator.api.models import SearchQuery


@pytest.mark.parametrize("given", [{"tag": ""}, {"tag": ","}, {"kind": ""}, {"kind": "mail,,note"}])
def test_an_empty_part_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        SearchQuery.model_validate({"text": "milk", **given})


def test_parts_are_split_at_commas() -> None:
    found = SearchQuery.model_validate({"text": "milk", "kind": "mail,note", "tag": "a:1,2,b:3"}).filter()
    assert found.kinds == ["mail", "note"]
    assert found.tags == {"a": ["1,2"], "b": ["3"]}
