"""The operator's page: screens under ``/console/`` on the private port."""
