"""Sign requests as Slack does."""

from slack_sdk.signature import SignatureVerifier


def signed_headers(secret: str, body: bytes, timestamp: int) -> dict[str, str]:
    """Return the two headers that prove that a request with this body comes from Slack.

    ``timestamp``: seconds since the epoch. The receiver refuses one that is more than 300 seconds off.
    """
    signature = SignatureVerifier(secret).generate_signature(timestamp=str(timestamp), body=body)
    return {"X-Slack-Request-Timestamp": str(timestamp), "X-Slack-Signature": str(signature)}
