"""Post to the app as Slack does: what an app hears of, signed requests, retries."""
