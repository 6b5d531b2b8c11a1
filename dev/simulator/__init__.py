"""A Slack to develop and test against: workspace, Web API, event sender, and a page to talk to the bot."""
