"""An emulator in a container for tests, by Testcontainers for Python (`pip install testcontainers`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from testcontainers.core.container import DockerContainer  # type: ignore[import-not-found]
from testcontainers.core.waiting_utils import wait_for_logs  # type: ignore[import-not-found]

CONFIG = Path("Config.json").absolute()


@pytest.fixture(scope="session")
def service_bus() -> Iterator[str]:
    """The connection string of an emulator."""
    container = DockerContainer("lazaretto-emulator").with_command("--config /config/Config.json --json")
    container.with_volume_mapping(str(CONFIG), "/config/Config.json", "ro").with_exposed_ports(5672)
    with container:
        wait_for_logs(container, "connection_string")
        host, port = container.get_container_host_ip(), container.get_exposed_port(5672)
        yield (
            f"Endpoint=sb://{host}:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=any;UseDevelopmentEmulator=true;"
        )
