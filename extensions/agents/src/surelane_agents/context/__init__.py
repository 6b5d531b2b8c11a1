"""What a model gets: the thread, the files in it, and the memory for them."""
