"""Keys come from the environment or the keyring, and are in no text; and only HTTPS is spoken."""

from __future__ import annotations

import ssl
import subprocess
import traceback
from pathlib import Path

import pytest
from cases import CASES, END, START, make_context
from fakes import NOW, NesoFake
from loopback import running

from slackwater.errors import ScenarioError
from slackwater.intensity.providers import provider_errors as errors
from slackwater.intensity.providers.chain import make_provider
from slackwater.intensity.providers.http import Client, bare, http_date, is_loopback
from slackwater.intensity.providers.keys import Keys, keyring_file, variable


def test_the_environment_goes_first(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('eia = "from-file"\nentsoe = "from-file"\n', encoding="utf-8")
    file.chmod(0o600)
    keys = Keys({"SLACKWATER_KEY_EIA": " from-environment "}, file)
    assert keys.get("eia") == "from-environment"
    assert keys.get("entsoe") == "from-file"
    assert keys.find("watttime") is None
    assert "from" not in repr(keys)


def test_where_the_keyring_is(tmp_path: Path) -> None:
    assert keyring_file({"SLACKWATER_KEYS": str(tmp_path / "k")}) == tmp_path / "k"
    assert keyring_file({"XDG_CONFIG_HOME": "/c"}) == Path("/c/slackwater/keys.toml")
    assert keyring_file({}) == Path.home() / ".config/slackwater/keys.toml"


def test_a_missing_key_is_said_with_both_ways_out(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingKeyError, match=r"SLACKWATER_KEY_EIA.*keys.toml.*chmod 600"):
        Keys({}, tmp_path / "keys.toml").get("eia")
    assert variable("my-provider") == "SLACKWATER_KEY_MY_PROVIDER"


def test_a_keyring_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('eia = "hidden-key"\n', encoding="utf-8")
    file.chmod(0o644)
    with pytest.raises(ScenarioError, match="chmod 600") as caught:
        Keys({}, file).get("eia")
    assert "hidden-key" not in str(caught.value)


@pytest.mark.parametrize("content", ["eia = hidden-key", "eia = " + "[" * 5000, "eia = 3", 'eia = "hidden-key\nx"'])
def test_a_keyring_that_is_wrong_shows_no_key(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(content, encoding="utf-8")
    file.chmod(0o600)
    with pytest.raises(ScenarioError) as caught:
        Keys({}, file).get("eia")
    assert "hidden" not in "".join(traceback.format_exception(caught.value)).replace(content, "")
    assert "hidden" not in str(caught.value)


def test_a_key_with_a_line_break_shows_no_key() -> None:
    with pytest.raises(ScenarioError, match="line break") as caught:
        Keys({"SLACKWATER_KEY_EIA": "hidden\r\nX-Header: 1"}, Path("none")).get("eia")
    assert "hidden" not in str(caught.value)


def test_texts_are_cleaned_of_every_form_of_a_secret() -> None:
    client = Client()
    client.hide("a b/c:d")
    assert client.clean("x a b/c:d y a+b%2Fc%3Ad z a%20b/c%3Ad \x1b[31m YSBiL2M6ZA==") == "x *** y *** z *** [31m ***"


@pytest.mark.parametrize("case", [case for case in CASES if case.secrets], ids=lambda case: case.spec)
def test_an_address_that_http_refuses_shows_no_key(case: object) -> None:
    """The standard library repeats such an address, query and all, in its error."""
    context = make_context({case.name: "https://127.0.0.1:1/with space"}, factor=case.factor, attempts=1)  # type: ignore[attr-defined]
    answer = make_provider(case.spec, context).fetch([case.zone], START, END, "actual")  # type: ignore[attr-defined]
    shown = "".join(traceback.format_exception(answer.failures[case.zone]))  # type: ignore[attr-defined]
    assert not any(secret in shown for secret in case.secrets)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://example.org", "is not an https:// address"),
        ("ftp://example.org", "is not an https:// address"),
        ("http://127.0.0.1:9", "SLACKWATER_LOOPBACK_HTTP=1"),
        ("http://localhost.example.org", "is not an https:// address"),
    ],
)
def test_only_https(address: str, words: str) -> None:
    provider = make_provider("neso", make_context({"neso": address}, factor="direct", loopback_http=False))
    error = provider.fetch(["GB"], START, END, "actual").failures["GB"]
    assert words in str(error)


def test_this_machine_is_asked_past_any_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with running(NesoFake(), NOW) as server:
        provider = make_provider("neso", make_context({"neso": server.address}, factor="direct"))
        assert provider.fetch(["GB"], START, END, "actual").expect().readings


def test_small_helpers() -> None:
    assert bare("https://me:pass@example.org/api?securityToken=abc") == "https://example.org/api"
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "example.org")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert http_date("Tue, 10 Nov 2026 12:20:00 GMT") == NOW
    assert http_date("soon") is None


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl to make a certificate")
    return key, cert


def test_over_tls_with_a_trusted_certificate_and_with_another(certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(cert, key)
    with running(NesoFake(), NOW, theirs) as server:
        settings = {"factor": "direct", "loopback_http": False}
        trusting = make_context({"neso": server.address}, tls=ssl.create_default_context(cafile=cert), **settings)
        answer = make_provider("neso", trusting).fetch(["GB"], START, END, "actual").expect()
        assert len(answer.readings) == 12
        doubting = make_context({"neso": server.address}, **settings)
        error = make_provider("neso", doubting).fetch(["GB"], START, END, "actual").failures["GB"]
    assert "is not trusted" in str(error)
