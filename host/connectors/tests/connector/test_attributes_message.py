"""Tests the message with the attributes of a request."""
from afterbay_connector import attributes


def test_the_message_begins_with_its_kind_and_has_what_is_known():
    assert attributes.encode('a"', lora="sql", session=None) == b'{"afterbay":"attributes","rid":"a\\"","attributes":{"lora":"sql"}}'


def test_a_request_without_attributes_and_one_with_too_long_ones_have_no_message():
    assert attributes.encode("a", lora=None) is None
    assert attributes.encode("a", lora="x" * attributes.BYTES_MAX) is None
