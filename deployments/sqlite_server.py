"""Prefect's server on SQLite, refusing no write because another one is going on.

Prefect begins most of its transactions as readers. One that then writes, after another has written
meanwhile, is refused by SQLite at once ("database is locked"), however long the timeout is: the
server answers 503, a client of Prefect's tries again, and a form in the UI is lost. Here each
transaction begins as a writer and waits for its turn, for up to the 60 s that Prefect grants.
Readers without a transaction wait for nobody, as before. PostgreSQL has none of this.

    python -m deployments.sqlite_server server start --port 4200    # `lmpipe up`
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import set_database_config
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


class WritersInTurn(AioSqliteConfiguration):
    """SQLite with every transaction a writer from its beginning."""

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        """Begin a transaction with the lock that writing takes."""
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def use_writers_in_turn() -> None:
    """Have this process's server take its database so, if that is SQLite."""
    url: str = PREFECT_API_DATABASE_CONNECTION_URL.value()
    if url.startswith("sqlite"):
        set_database_config(WritersInTurn(connection_url=url))


if __name__ == "__main__":
    from prefect.cli import app

    use_writers_in_turn()
    app()
