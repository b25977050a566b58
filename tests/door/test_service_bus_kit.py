"""`lazaretto.testing.service_bus`: a Service Bus in the test's own process."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncClient

from door.emulators import config_of
from door.wire import some
from lazaretto import InvalidOption
from lazaretto.testing import LocalEmulator, ServiceBus, service_bus

pytest_plugins = ["pytester"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return config_of(tmp_path / "Config.json", "q")


def test_it_gives_a_connection_string(config: Path) -> None:
    with service_bus(config) as bus, ServiceBusClient.from_connection_string(bus) as client:
        with client.get_queue_sender("q") as sender, client.get_queue_receiver("q") as receiver:
            sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))
            bus.advance(3601)
            assert [str(one) for one in some(receiver, 1)] == ["later"]
            bus.clear("q")
            sender.send_messages(ServiceBusMessage("next"))
            assert [str(one) for one in some(receiver, 1)] == ["next"]
        bus.reset()
        with client.get_queue_receiver("q") as receiver:
            assert receiver.peek_messages(10) == []


def test_it_serves_coroutines(config: Path) -> None:
    async def play() -> list[str]:
        async with service_bus(config) as bus, AsyncClient.from_connection_string(bus) as client:
            async with client.get_queue_sender("q") as sender:
                await sender.send_messages(ServiceBusMessage("lamp"))
            async with client.get_queue_receiver("q") as receiver:
                return [str(one) for one in await receiver.receive_messages(max_wait_time=120)]

    assert asyncio.run(play()) == ["lamp"]


def test_namespaces_of_one_emulator_are_isolated(config: Path) -> None:
    with LocalEmulator(config) as emulator, emulator.namespace() as one, emulator.namespace() as two:
        assert isinstance(one, ServiceBus)
        with ServiceBusClient.from_connection_string(one) as client:
            client.get_queue_sender("q").send_messages(ServiceBusMessage("lamp"))
        with ServiceBusClient.from_connection_string(two) as client:
            assert client.get_queue_receiver("q").peek_messages(10) == []


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text('{"UserConfig": 5}')
    with pytest.raises(InvalidOption, match="UserConfig"), service_bus(tmp_path / "Config.json"):
        pass


def test_the_fixture(pytester: pytest.Pytester, config: Path) -> None:
    pytester.makeconftest(
        f"""
        import pathlib, pytest
        pytest_plugins = ["lazaretto.testing.fixtures"]

        @pytest.fixture(scope="session")
        def lazaretto_config():
            return pathlib.Path({str(config)!r})
        """
    )
    pytester.makepyfile(
        """
        import pytest
        from azure.servicebus import ServiceBusClient, ServiceBusMessage

        @pytest.mark.parametrize("body", ["one", "two"])
        def test_a_namespace_of_its_own(lazaretto_service_bus, body):
            with ServiceBusClient.from_connection_string(lazaretto_service_bus) as client:
                with client.get_queue_sender("q") as sender:
                    sender.send_messages(ServiceBusMessage(body))
                with client.get_queue_receiver("q") as receiver:
                    assert [str(one) for one in receiver.peek_messages(10)] == [body]
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
