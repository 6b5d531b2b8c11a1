"""Run ``python -m surelane_migrations``."""

from surelane_migrations.command import run

if __name__ == "__main__":
    run()
