"""Several Surelane installations side by side: asks them all, and moves a workspace."""
