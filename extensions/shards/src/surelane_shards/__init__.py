"""Several installations, each for some workspaces: a command for all of them, and moves between them."""
