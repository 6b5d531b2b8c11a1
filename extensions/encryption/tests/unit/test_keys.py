"""What is sealed opens with any key of the list, in its own place only."""

import pytest
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict
from typer.testing import CliRunner

from surelane.codec import SealedError
from surelane.errors import SettingsError
from surelane_encryption.keys import Keyring, new_key
from surelane_operator.cli.command import app
from surelane_service.service_settings import EncryptionKeys, load_settings

OLD, NEW = new_key(), new_key()


class Settings(BaseSettings):
    """A service's settings with keys."""

    model_config = SettingsConfigDict(arbitrary_types_allowed=True)

    keys: EncryptionKeys = Field(None, validation_alias="SURELANE_ENCRYPTION_KEYS")


def keyring(*keys: str) -> Keyring:
    return Keyring(keys)


def test_what_is_sealed_opens_in_its_place_alone() -> None:
    ring = keyring(NEW)
    sealed = ring.seal(b"xoxb-token", "row 1")
    assert b"xoxb-token" not in sealed
    assert ring.open(sealed, "row 1") == b"xoxb-token"
    assert ring.seal(b"xoxb-token", "row 1") != sealed
    with pytest.raises(SealedError, match="belongs to another row"):
        ring.open(sealed, "row 2")
    assert keyring("+/+/" * 10 + "+/8=").seal(b"text", "row"), "a key of openssl"
    made = [CliRunner().invoke(app, ["keys", "new"]).stdout for _ in range(2)]
    assert made[0] != made[1]
    assert keyring(made[0].strip()).seal(b"text", "row"), "a key of the command"


def test_the_first_key_seals_and_all_open_and_verify_a_signature_for_its_purpose() -> None:
    before = keyring(OLD).seal(b"text", "row")
    ring = keyring(NEW, OLD)
    assert ring.open(before, "row") == b"text"
    assert not ring.is_current(before)
    after = ring.seal(b"text", "row")
    assert ring.is_current(after)
    assert keyring(NEW).open(after, "row") == b"text"
    with pytest.raises(SealedError, match=rf"key {keyring(OLD).current_id.hex()}.*SURELANE_ENCRYPTION_KEYS"):
        keyring(NEW).open(before, "row")
    signature = keyring(OLD).sign(b"text", "state")
    assert ring.signed(b"text", signature, "state")
    assert not ring.signed(b"text", signature, "other")
    assert not ring.signed(b"texts", signature, "state")
    assert not keyring(NEW).signed(b"text", signature, "state")


@pytest.mark.parametrize("cut", [0, 1, 8, 20, 36])
def test_what_was_cut_short_or_changed_does_not_open(cut: int) -> None:
    ring = keyring(NEW)
    sealed = ring.seal(b"text", "row")
    with pytest.raises(SealedError):
        ring.open(sealed[:cut], "row")
    changed = bytearray(sealed)
    changed[cut] ^= 1
    with pytest.raises(SealedError):
        ring.open(bytes(changed), "row")


def test_keys_are_read_from_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURELANE_ENCRYPTION_KEYS", f" {NEW} , {OLD},")
    settings = load_settings(Settings)
    assert settings.keys is not None
    assert settings.keys.open(keyring(OLD).seal(b"text", "row"), "row") == b"text"
    assert keyring(NEW).open(settings.keys.seal(b"text", "row"), "row") == b"text"
    assert NEW not in repr(settings)
    monkeypatch.setenv("SURELANE_ENCRYPTION_KEYS", "")
    assert load_settings(Settings).keys is None


@pytest.mark.parametrize(
    "wrong",
    ["short", "é" * 44, "A" * 43 + "!", "A" * 60, NEW + NEW],
    ids=["short", "not ASCII", "not base64", "too long", "two keys"],
)
def test_a_malformed_key_is_refused_by_the_settings_name(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("SURELANE_ENCRYPTION_KEYS", f"{NEW},{wrong}")
    with pytest.raises(SettingsError, match=r"SURELANE_ENCRYPTION_KEYS: key 2 .*surelane keys new") as caught:
        load_settings(Settings)
    assert wrong not in str(caught.value)
    monkeypatch.setenv("SURELANE_ENCRYPTION_KEYS", f"{NEW},{NEW}")
    with pytest.raises(SettingsError, match=r"SURELANE_ENCRYPTION_KEYS: .* twice"):
        load_settings(Settings)
