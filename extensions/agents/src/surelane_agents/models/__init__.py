"""The models: how they are asked, how a response ends, and what it costs."""
