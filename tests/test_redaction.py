"""No credentials of an address get into a text."""

import pytest

from rftui.redaction import credentials, hide_credentials


@pytest.mark.parametrize(
    ("uri", "plain"),
    [
        ("http://me:pa55word@host:5000/x", "http://host:5000/x"),
        ("https://me:p%4055word@host", "https://host"),
        ("https://me:p/a?s#s@word@host/x", "https://host/x"),
        ("https://a-token-alone@host", "https://host"),
        ("postgresql+psycopg2://me:pa55word@host/db?password=pa55word", "postgresql+psycopg2://host/db?[redacted]"),
        ("https://host/?token=pa55word&x=y", "https://host/?[redacted]"),
        ("sqlite:////home/me/a b.db", "sqlite:////home/me/a b.db"),
    ],
)
def test_an_address_is_told_without_user_password_and_query(uri, plain):
    assert hide_credentials(uri) == plain
    assert hide_credentials(f"GET '{uri}' failed") == f"GET '{plain}' failed"


def test_a_secret_is_hidden_wherever_it_stands():
    uri = "https://me:p%4055%2Fword@host/?token=T0KEN%21&n=1"
    text = "login p@55/word or p%4055%2Fword with T0KEN! and T0KEN%21 for me at host, 1 time"
    hidden = "login [redacted] or [redacted] with [redacted] and [redacted] for me at host, 1 time"
    assert hide_credentials(text, credentials(uri)) == hidden
    assert credentials("sqlite:///mlflow.db") == set() == credentials("./mlruns")
