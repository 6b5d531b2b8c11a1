"""Handlers of what people do beside a turn: rules, ratings, edits."""
