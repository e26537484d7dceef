"""The whole command `lmpipe`: the commands of flows/cli, and those that bring a server to work."""

from deployments import services
from flows.cli.app import app, main

app.add_typer(services.app)  # deploy, worker, up

if __name__ == "__main__":
    main()
