"""What operators read beside events: kinds, schedules, workflows, questions, workers, the doctor's findings.

The operator's page and ``/v1`` show the same models.
"""
