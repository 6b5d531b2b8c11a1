"""Encrypts what Surelane stores of people: payloads, results, steps and tokens."""
