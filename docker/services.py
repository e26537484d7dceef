"""Run the services of Prefect's server, and end once one of them has died.

`prefect server services start` starts its services and looks at none of them again. One that
raises, because the database is away, slow to connect or not migrated yet, leaves a process that
looks alive and automations that never act: no crashed run is queued again. A server process of our
own that awaits the services was the alternative; it would rest on Prefect's inner functions, and
see none that hangs. What they leave in Redis tells of both:

- a service that reads events has a consumer group, and what waits in it is read;
- a worker of the docket (scheduler, late runs, proactive automations) reports every two seconds.

When that has been wrong for a while, this ends with an error, and the container's restart policy
takes over. Compose itself restarts nothing that is unhealthy.

    python docker/services.py [--patience SECONDS]
    python docker/services.py --check      # the health check: says what is wrong, if anything
"""

import os
import subprocess
import sys
import time
from typing import Any

import redis

GROUPS = {
    "event-persister": "events",
    "reactive-triggers": "events",
    "task-run-recorder": "events",
    "actions": "actions",
}
PROACTIVE = "prefect:task-workers:evaluate_proactive_triggers_periodic"
# A consumer asks every second, and takes up to ten for a message while the database is slow.
SILENT_SECONDS = 30.0
PATIENCE_SECONDS = 90.0  # the services are up after 10-40 s on two busy cores
EVERY_SECONDS = 5.0


def faults() -> list[str]:
    """Say what is wrong with the services now."""
    try:
        with redis.from_url(os.environ["PREFECT_REDIS_MESSAGING_URL"], socket_timeout=4) as events:
            version = tuple(map(int, events.info("server")["redis_version"].split(".")[:2]))
            found = [
                f"{group}: {fault}"
                for group, stream in GROUPS.items()
                if (fault := _fault_of_group(events, stream, group, version >= (7, 2)))
            ]
        with redis.from_url(os.environ["PREFECT_SERVER_DOCKET_URL"], socket_timeout=4) as docket:
            reports = docket.zrange(PROACTIVE, -1, -1, withscores=True)
    except redis.RedisError as error:
        return [f"Redis: {error}"]
    if not reports or time.time() - reports[0][1] > SILENT_SECONDS:
        found.append(f"docket: no worker has reported for {SILENT_SECONDS:g} s")
    return found


def _fault_of_group(events: Any, stream: str, group: str, shows_attempts: bool) -> str:
    """Say what is wrong with a consumer group.

    Args:
        shows_attempts: whether Redis counts a consumer's silence from its last attempt to read, as
            from 7.2 on. Before, silence counts from the last message: where none waits, a group's
            consumers may be silent, and even unknown.
    """
    if not events.exists(stream):
        return "its stream is missing"
    groups = {found["name"].decode(): found for found in events.xinfo_groups(stream)}
    if group not in groups:
        return "the consumer group is missing"
    silences = [consumer["idle"] / 1000 for consumer in events.xinfo_consumers(stream, group)]
    if min(silences, default=SILENT_SECONDS) < SILENT_SECONDS:
        return ""
    delivered = groups[group]["last-delivered-id"].decode()
    waiting = events.xrange(stream, min=f"({delivered}", count=1)
    written = [int(message.split(b"-")[0]) / 1000 for message, _ in waiting]
    if shows_attempts or any(time.time() - at > SILENT_SECONDS for at in written):
        return f"no consumer has read for {SILENT_SECONDS:g} s"
    return ""


def run(patience_seconds: float) -> int:
    """Run the services until they end or have been wrong for so long; return an exit code."""
    services = subprocess.Popen([sys.executable, "-m", "prefect", "server", "services", "start"])
    well = time.monotonic()
    while services.poll() is None:
        found = faults()
        if not found:
            well = time.monotonic()
        elif time.monotonic() - well > patience_seconds:
            print(f"the services are ended: {'; '.join(found)}", file=sys.stderr, flush=True)
            services.kill()  # what they had not acknowledged is read again
            services.wait()
            return 1
        time.sleep(EVERY_SECONDS)
    return services.returncode


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        found = faults()
        print("\n".join(found))
        sys.exit(1 if found else 0)
    patience = float(sys.argv[2]) if sys.argv[1:2] == ["--patience"] else PATIENCE_SECONDS
    sys.exit(run(patience))
