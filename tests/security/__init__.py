"""Security: what somebody hostile sends, serves, or makes a browser send."""
