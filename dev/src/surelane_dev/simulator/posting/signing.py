"""Sign requests as Slack does."""

from slack_sdk.signature import SignatureVerifier


def signed_headers(secret: str, body: bytes, timestamp: int) -> dict[str, str]:
    """Return the two headers that prove that a request comes from Slack.

    Args:
        secret: the app's signing secret.
        body: the request's body, exactly as it is sent.
        timestamp: seconds since the epoch; the receiver refuses one more than 300 seconds off.
    """
    signature = SignatureVerifier(secret).generate_signature(timestamp=str(timestamp), body=body)
    return {"X-Slack-Request-Timestamp": str(timestamp), "X-Slack-Signature": str(signature)}
