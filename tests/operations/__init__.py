"""What operators go through: backups, upgrades, poor networks, clocks that jump, full volumes."""
