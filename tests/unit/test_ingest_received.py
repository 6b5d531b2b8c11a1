"""What ingest has received, in words: the operator's page shows it for a message that never arrived."""

from surelane_ingest.metrics import Metrics


def test_counts_of_a_kind_and_of_a_status_are_summed() -> None:
    metrics = Metrics(lambda: 0)
    metrics.sent("slack.app_mention")
    metrics.sent("slack.message.im")
    metrics.sent("slack.message.im", "DatabaseUnavailable")
    metrics.answers.update(
        {("/slack/events", 200): 9, ("/slack/events", 401): 2, ("/slack/commands", 401): 1, ("other", 404): 4}
    )
    metrics.ignored["the app's own message"] += 5
    metrics.duplicates = 3
    assert metrics.received() == {
        "events stored": 2,
        "events not stored, so that Slack repeats them": 1,
        "duplicates, not stored again": 3,
        "ignored: the app's own message": 5,
        "refused with 401: the signature is wrong, or came late": 3,
        "refused with 404": 4,
    }
