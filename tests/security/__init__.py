"""Hostile requests, servers and web pages get nothing."""
