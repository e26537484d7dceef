"""Bringing a Prefect server to a wanted state: read, compare, and write only what differs.

Through the REST API with plain JSON on both sides: what the server holds can then be compared with
what is wanted, key by key. Prefect's own `deploy` writes every time, and each write deletes and
plans anew the scheduled runs of the deployment. What operators switch in the UI (a schedule on, a
pool paused, an automation off) is set at creation only and is theirs afterwards.
"""

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass
class PrefectApi:
    """A server, and what was changed on it."""

    client: Any
    changes: list[str] = field(default_factory=list)

    def pool(self, name: str, kind: str, description: str, template: Json) -> None:
        """Have a work pool; its template is the operator's to edit."""
        if self._get(f"/work_pools/{name}") is None:
            body = {"name": name, "type": kind, "description": description}
            self._write("POST", "/work_pools/", body | {"base_job_template": template})
            self.changes.append(f"work pool {name}: created")

    def queues(self, pool: str, wanted: dict[str, Json]) -> None:
        """Have a pool's queues with their priorities and limits.

        The server keeps priorities unique by moving others down, so they are set lowest first;
        the `default` queue that every pool is born with ends up behind all of ours.
        """
        for name, settings in sorted(wanted.items(), key=lambda item: item[1]["priority"]):
            path = f"/work_pools/{pool}/queues"
            body = {"concurrency_limit": None} | settings
            found = self._get(f"{path}/{name}")
            if found is None:
                self._write("POST", f"{path}/", body | {"name": name})
                self.changes.append(f"queue {pool}/{name}: created")
            elif different := _different(body, found):
                self._write("PATCH", f"{path}/{name}", different)
                self.changes.append(f"queue {pool}/{name}: {', '.join(different)}")

    def limit(self, name: str, slots: int | None, slots_at_first: int) -> None:
        """Have a global concurrency limit; without `slots` one that exists stays as it is."""
        path = "/v2/concurrency_limits/"
        found = self._get(f"{path}{name}")
        if found is None:
            self._write("POST", path, {"name": name, "limit": slots or slots_at_first})
            self.changes.append(f"limit {name}: created")
        elif slots is not None and found["limit"] != slots:
            self._write("PATCH", f"{path}{name}", {"limit": slots})
            self.changes.append(f"limit {name}: {found['limit']} to {slots}")

    def deployment(self, flow: str, wanted: Json, schedules: list[Json]) -> None:
        """Have a deployment and its schedules."""
        name = f"{flow}/{wanted['name']}"
        found = self._get(f"/deployments/name/{name}")
        if found is None:
            flow_id = self._write("POST", "/flows/", {"name": flow})["id"]
            found = self._write("POST", "/deployments/", wanted | {"flow_id": flow_id})
            self.changes.append(f"deployment {name}: created")
        else:
            limit = (found["global_concurrency_limit"] or {}).get("limit")
            different = _different(wanted, found | {"concurrency_limit": limit})
            if different:
                if "work_pool_name" in different:  # without it the server takes the pool's default
                    different["work_queue_name"] = wanted["work_queue_name"]
                self._write("PATCH", f"/deployments/{found['id']}", different)
                self.changes.append(f"deployment {name}: {', '.join(different)}")
        self._schedules(name, found, schedules)

    def _schedules(self, deployment: str, found: Json, wanted: list[Json]) -> None:
        """Have the schedules wanted, and no other that has a slug; those made in the UI have none.

        If one has gone and one is new it was renamed, and stays on if somebody has switched it on.
        """
        path = f"/deployments/{found['id']}/schedules"
        there = {s["slug"]: s for s in found["schedules"] if s["slug"]}
        slugs = [schedule["slug"] for schedule in wanted]
        gone = [slug for slug in there if slug not in slugs]
        new = [schedule for schedule in wanted if schedule["slug"] not in there]
        if len(gone) == len(new) == 1:
            (old,), (schedule,) = gone, new
            self._change_schedule(path, there[old], schedule)
            self._note_schedule(deployment, old, f"renamed to {schedule['slug']}", there[old])
            gone, new = [], []
        for slug in gone:
            self._write("DELETE", f"{path}/{there[slug]['id']}", None)
            self._note_schedule(deployment, slug, "removed", there[slug])
        for schedule in new:
            self._write("POST", path, [schedule])
            self.changes.append(f"schedule {deployment} {schedule['slug']}: created")
        for schedule in wanted:
            same = there.get(schedule["slug"])
            if same and not _holds(schedule["schedule"], same["schedule"]):
                self._change_schedule(path, same, schedule)
                self._note_schedule(deployment, schedule["slug"], str(schedule["schedule"]), same)

    def _change_schedule(self, path: str, found: Json, wanted: Json) -> None:
        """Write slug and times; without its parameters named, the server would empty them."""
        body = {"slug": wanted["slug"], "schedule": wanted["schedule"]}
        body["parameters"] = found["parameters"]
        self._write("PATCH", f"{path}/{found['id']}", body)

    def _note_schedule(self, deployment: str, slug: str, what: str, found: Json) -> None:
        switch = "on" if found["active"] else "off"
        tense = "was" if what == "removed" else "is"
        self.changes.append(f"schedule {deployment} {slug}: {what} ({tense} switched {switch})")

    def other_deployments(self, tag: str, names: set[str], prune: bool) -> list[str]:
        """Return deployments with a tag whose names are not among those given, or remove them."""
        body = {"deployments": {"tags": {"all_": [tag]}}}
        others = [
            d for d in self._write("POST", "/deployments/filter", body) if d["name"] not in names
        ]
        for other in others if prune else []:
            self._write("DELETE", f"/deployments/{other['id']}", None)
            self.changes.append(f"deployment {other['name']}: removed")
        return [] if prune else [_with_schedules(other) for other in others]

    def automation(self, wanted: Json) -> None:
        """Have an automation, found by its name."""
        by_name = {"automations": {"name": {"any_": [wanted["name"]]}}}
        found = self._write("POST", "/automations/filter", by_name)
        if not found:
            self._write("POST", "/automations/", wanted)
            self.changes.append(f"automation {wanted['name']}: created")
        elif not _holds({k: v for k, v in wanted.items() if k != "enabled"}, found[0]):
            body = wanted | {"enabled": found[0]["enabled"]}
            self._write("PUT", f"/automations/{found[0]['id']}", body)
            self.changes.append(f"automation {wanted['name']}: updated")

    def _get(self, path: str) -> Any:
        from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

        try:
            return self.client.request("GET", path).json()
        except (ObjectNotFound, PrefectHTTPStatusError) as error:
            response = getattr(error, "response", None)
            if response is not None and response.status_code != 404:
                raise
            return None

    def _write(self, method: Any, path: str, body: Any) -> Any:
        response = self.client.request(method, path, **({} if body is None else {"json": body}))
        return response.json() if response.content else None


def _with_schedules(deployment: Json) -> str:
    active = sum(schedule["active"] for schedule in deployment["schedules"])
    return f"{deployment['name']} ({active} of its schedules switched on)"


def _different(wanted: Json, actual: Json) -> Json:
    """Return the keys of what is wanted that the server holds otherwise."""
    loose = {"concurrency_options"}  # the server adds defaults of its own
    return {
        key: value
        for key, value in wanted.items()
        if not (_holds(value, actual[key]) if key in loose else value == actual[key])
    }


def _holds(wanted: Any, actual: Any) -> bool:
    """Whether all that is wanted is there; the server may add keys, and order lists its own way."""
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(
            key in actual and _holds(value, actual[key]) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(actual, list)
            and len(wanted) == len(actual)
            and all(any(_holds(item, other) for other in actual) for item in wanted)
        )
    return bool(wanted == actual)
