"""Whether a request comes from Slack: its signature over the raw body, under any of the app's signing secrets."""

from collections.abc import Sequence

from slack_sdk.signature import Clock, SignatureVerifier


class Signatures:
    """Verifies Slack's signature. Several secrets stand during a rotation: the old one and the new one."""

    def __init__(self, secrets: Sequence[str], clock: Clock | None = None) -> None:
        self._verifiers = [SignatureVerifier(secret, clock or Clock()) for secret in secrets]

    def valid(self, body: bytes, timestamps: Sequence[str], signatures: Sequence[str]) -> bool:
        """Whether ``body`` was signed with one of the secrets no more than five minutes ago, or ahead.

        Args:
            body: the raw body.
            timestamps: every ``X-Slack-Request-Timestamp`` header there is; any number but one is refused.
            signatures: every ``X-Slack-Signature`` header there is; likewise.
        """
        if len(timestamps) != 1 or len(signatures) != 1:
            return False
        return any(_valid(verifier, body, timestamps[0], signatures[0]) for verifier in self._verifiers)


def _valid(verifier: SignatureVerifier, body: bytes, timestamp: str, signature: str) -> bool:
    try:
        return verifier.is_valid(body, timestamp, signature)
    except (ValueError, TypeError, OverflowError):
        # Hostile input: a timestamp that is no number or too large a one, a signature outside ASCII, a body
        # outside UTF-8.
        return False
