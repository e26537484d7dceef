"""The Prefect server of the flows' tests."""

from tests.flows.conftest import prefect_server

__all__ = ["prefect_server"]
