"""The handlers a worker runs: the registry a team fills, how it is loaded, and the built-in ones."""
