"""Serve ``functions.*``: the end of a function that a workflow has started."""

from surelane_dev.simulator.webapi.call import ApiError, MethodCall, invalid_arguments
from surelane_dev.simulator.workspace.executions import Execution
from surelane_dev.simulator.workspace.model import JSON


def complete_success(call: MethodCall) -> JSON:
    run = _running(call)
    outputs = call.mapping("outputs", "invalid_arguments")
    if outputs is None:
        raise invalid_arguments("must provide an object [json-pointer:/outputs]")
    run.state, run.outputs = "completed", outputs
    return {}


def complete_error(call: MethodCall) -> JSON:
    """End a run with an error for the person who started the workflow."""
    run = _running(call)
    run.state, run.error = "failed", call.text("error")
    return {}


def _running(call: MethodCall) -> Execution:
    run = call.slack.executions.find(call.text("function_execution_id"))
    if run is None or run.team_id != call.workspace.team_id:
        raise ApiError("function_execution_not_found")
    if run.state != "running":
        raise ApiError("execution_not_in_running_state")
    return run
