"""Hints with two forms: each reader gets the right one, and no copy loses one."""

import copy
import json
import pickle

from tosaic.cli.guard import explain
from tosaic.core.errors import Invalid
from tosaic.core.hints import Hint, get_cli_form, prepend

HINT = Hint("pass `max_memory`", "use `--max-memory`")


def test_the_api_form_is_the_string() -> None:
    assert HINT == "pass `max_memory`" and json.dumps([HINT]) == '["pass `max_memory`"]'
    assert get_cli_form(HINT) == "use `--max-memory`"
    assert get_cli_form("plain") == "plain"


def test_text_before_a_hint_keeps_both_forms() -> None:
    both = prepend("for `x`: ", HINT)
    assert (both, get_cli_form(both)) == ("for `x`: pass `max_memory`", "for `x`: use `--max-memory`")
    assert prepend("for `x`: ", "plain") == "for `x`: plain"


def test_copies_keep_both_forms() -> None:
    for kept in (copy.deepcopy(HINT), pickle.loads(pickle.dumps(HINT))):
        assert (kept, get_cli_form(kept)) == (HINT, HINT.cli)


def test_an_error_has_two_texts() -> None:
    error = Invalid("what", fix=HINT)
    assert str(error) == "what\n  fix: pass `max_memory`"
    assert explain(error) == "error: what\n  fix: use `--max-memory`"
