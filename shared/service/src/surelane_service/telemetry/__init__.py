"""Push traces by OTLP; serve metrics on the private port."""
