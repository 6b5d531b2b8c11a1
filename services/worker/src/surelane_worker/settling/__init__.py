"""Settling: report each outcome to the database under the claim's fence."""
