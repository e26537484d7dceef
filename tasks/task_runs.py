"""The task runs of one flow run: a node of the graph in the UI for every stage, built or found.

Prefect draws an edge where a task waits for another one's state. A stage's inputs are artifacts,
which Prefect does not look into, so the states are kept by artifact, and a task waits for those of
its inputs. They have all ended by then: the order of a flow is that of its calls.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lmpipe.artifacts.stage import A
from lmpipe.artifacts.types import Artifact
from lmpipe.errors import ConfigError, InputError
from tasks.conductor import Call

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State, TaskRun
    from prefect.tasks import Task


class TaskRuns:
    """Makes task runs, and knows which of them an artifact came from."""

    def __init__(self) -> None:
        self._states: dict[str, State[Any]] = {}

    def build(self, call: Call[A], inputs: list[Artifact], work: Callable[[], A]) -> A:
        """Return what the work makes inside a task run with the call's policy."""
        policy = call.policy
        options = {
            "tags": list(policy.tags),
            "retries": policy.retries,
            "retry_delay_seconds": policy.retry_delay_seconds,
            "retry_condition_fn": _is_worth_a_retry,
            "timeout_seconds": policy.timeout_seconds,
        }
        return self._run(call, inputs, work, options)

    def show_found(self, call: Call[A], inputs: list[Artifact], found: A) -> None:
        """Make a task run for what was in the store; none of the call's limits holds it up.

        Outside a flow run there is no graph to show it in.
        """
        from prefect.context import FlowRunContext
        from prefect.states import Completed

        if FlowRunContext.get() is None:
            return

        def cached() -> "State[Any]":  # the server drops a state older than the task's Running
            message = f"found in the store: {found.stage}/{found.id}"
            return Completed(name="Cached", message=message, data=found)

        self._run(call, inputs, cached, {})

    def _run(
        self,
        call: Call[A],
        inputs: list[Artifact],
        work: Callable[[], Any],
        options: dict[str, Any],
    ) -> A:
        from prefect import task
        from prefect.cache_policies import NO_CACHE

        @task(
            name=call.stage.name,
            task_run_name=call.name,
            description=(call.stage.function.__doc__ or "").strip(),
            version=str(call.stage.version),
            cache_policy=NO_CACHE,
            persist_result=False,
            **options,
        )
        def run_stage() -> Any:
            return work()

        keys = dict.fromkeys(_key(artifact) for artifact in inputs)
        upstream = [self._states[key] for key in keys if key in self._states]
        state: State[Any] = run_stage(wait_for=upstream, return_state=True)
        artifact: A = state.result()
        self._states[_key(artifact)] = state
        return artifact


def _key(artifact: Artifact) -> str:
    return f"{artifact.stage}/{artifact.id}"


def _is_worth_a_retry(task: "Task[Any, Any]", run: "TaskRun", state: "State[Any]") -> bool:
    """Retry what may pass; a wrong config or broken input fails the same way every time."""
    try:
        state.result()
    except (ConfigError, InputError):
        return False
    except Exception:
        return True
    return False
