"""Slack's request signature, made the way Slack makes it."""

from slack_sdk.signature import SignatureVerifier


def signed_headers(secret: str, body: bytes, timestamp: int) -> dict[str, str]:
    """The two headers that prove a request comes from Slack.

    Args:
        secret: the app's signing secret.
        body: the request's body, exactly as it is sent.
        timestamp: seconds since the epoch; the receiver refuses one more than 300 seconds off.
    """
    signature = SignatureVerifier(secret).generate_signature(timestamp=str(timestamp), body=body)
    return {"X-Slack-Request-Timestamp": str(timestamp), "X-Slack-Signature": str(signature)}
