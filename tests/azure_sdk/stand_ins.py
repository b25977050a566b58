"""A plugin of pytest: what the tests of azure-servicebus import of Azure's test tools, for a local door.

They make namespaces, queues and topics by Azure Resource Manager, and take names and tokens from it. Here
there is one namespace for each process, the door that the environment names; all else is made with its
administration client.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import inspect
import os
import secrets
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import certifi
import pytest
import trustme
from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus._base_handler import BaseHandler, ServiceBusSharedKeyCredential
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.aio._base_handler_async import BaseHandler as AsyncBaseHandler
from azure.servicebus.aio._base_handler_async import ServiceBusSharedKeyCredential as AsyncSharedKey
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministration
from azure.servicebus.management import (
    AuthorizationRule,
    QueueProperties,
    ServiceBusAdministrationClient,
)
from door.emulators import Emulated, emulated
from servers import new_store

import lazaretto

#: The rule that has all rights, as in every namespace.
POLICY: Final = "RootManageSharedAccessKey"
#: The key of it.
KEY: Final = base64.b64encode(b"a key of thirty-two bytes, dear!").decode()
_HOST: Final = "localhost"


class Namespace:
    """The door of this process, and who has what in it."""

    def __init__(self) -> None:
        self._served: Emulated | None = None
        self._running = contextlib.ExitStack()
        self._folder = Path(os.environ["LAZARETTO_TEST_FOLDER"])
        #: A server of PostgreSQL for the store; none: it is a file.
        self._server = os.environ["LAZARETTO_TEST_SERVER"]

    @property
    def name(self) -> str:
        """The host, as tests put it before the suffix."""
        return _HOST

    @property
    def address(self) -> str:
        return f"{_HOST}:{self.served.port}"

    @property
    def served(self) -> Emulated:
        if self._served is None:
            worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
            store, key = f"sqlite:///{self._folder}/{worker}.db", self._folder / f"{worker}.key"
            if self._server:
                store = self._running.enter_context(new_store(self._server))
            key.write_text(KEY, "utf-8")
            key.chmod(0o600)
            lazaretto.connect(store).close()
            certificate = self._folder / f"{worker}.pem"
            authority = trustme.CA()
            authority.issue_cert(_HOST).private_key_and_cert_chain_pem.write_to_path(str(certificate))
            trusted = self._folder / f"{worker}-authority.pem"
            authority.cert_pem.write_to_path(str(trusted))
            certificate.chmod(0o600)
            certifi.where = lambda: str(trusted)
            options = {"store": store, "key-file": key, "certificate": certificate, "tier": "standard"}
            words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
            self._served = self._running.enter_context(emulated(*words))
        return self._served

    def connection_string(self, policy: str = POLICY, key: str = KEY, entity: str = "") -> str:
        path = f";EntityPath={entity}" if entity else ""
        return (
            f"Endpoint=sb://{self.address}/;SharedAccessKeyName={policy};SharedAccessKey={key}"
            f";UseDevelopmentEmulator=true{path}"
        )

    @functools.cached_property
    def administration(self) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(self.connection_string())

    def end(self) -> None:
        """Stop the door."""
        self._running.close()


NAMESPACE: Final = Namespace()


# Clients go to the door, without TLS unless it is what a test is about, wherever they are told to connect.


def _without_tls(kind: type) -> None:
    begin = kind.__init__  # type: ignore[misc]

    @functools.wraps(begin)
    def start(self: Any, *words: Any, **options: Any) -> None:
        tls = bool(options.get("ssl_context") or options.get("connection_verify"))
        if tls or options.get("transport_type") is TransportType.AmqpOverWebsocket:
            # They go to 5671 or 443 whatever the address says.
            options.setdefault("custom_endpoint_address", f"sb://{NAMESPACE.address}")
        begin(self, *words, **{**options, "use_tls": tls})

    kind.__init__ = start  # type: ignore[misc]


for _kind in (
    ServiceBusClient, AsyncClient, BaseHandler, AsyncBaseHandler, ServiceBusAdministrationClient,
    AsyncAdministration,
):  # fmt: skip
    _without_tls(_kind)


def _in_clear(kind: type) -> None:
    """Have an HTTP client go without TLS. The administration client speaks nothing else by itself."""
    begin = kind.send  # type: ignore[attr-defined]

    @functools.wraps(begin)
    def send(self: Any, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return begin(self, request, **options)

    kind.send = send  # type: ignore[attr-defined]


for _transport in (RequestsTransport, AioHttpTransport):
    _in_clear(_transport)


def get_credential(*, is_async: bool = False, **_: Any) -> Any:
    """Return what proves all rights in the namespace."""
    return (AsyncSharedKey if is_async else ServiceBusSharedKeyCredential)(POLICY, KEY)


# What is made for a test.


class FakeResource:
    """Something with a name."""

    def __init__(self, name: str, **others: Any) -> None:
        vars(self).update(others, name=name)


_kept: dict[Any, dict[str, Any]] = {}


class AzureMgmtPreparer:
    """A decorator that makes something before a test, hands it over, and removes it."""

    is_live = True
    moniker = resource_moniker = ""
    resource: Any = None
    client: Any = None

    def __init__(self, name_prefix: str = "", *_: Any, **__: Any) -> None:
        self.name_prefix = name_prefix
        self.random_name_enabled = True
        self._key: Any = None

    def set_cache(self, enabled: bool, *key: Any) -> None:
        self._key = (type(self).__name__, *map(str, key)) if enabled else None

    def create_mgmt_client(self, kind: type, **_: Any) -> Any:
        return kind()

    def create_resource(self, name: str, **_: Any) -> dict[str, Any]:
        raise NotImplementedError

    def remove_resource(self, name: str, **_: Any) -> None:
        pass

    @contextlib.contextmanager
    def _resource(self, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._key is not None and self._key in _kept:
            yield {**arguments, **_kept[self._key]}
            return
        name = f"{self.name_prefix}{secrets.token_hex(6)}"
        product = self.create_resource(name, **arguments)
        if self._key is not None:
            _kept[self._key] = product
        try:
            yield {**arguments, **product}
        finally:
            if self._key is None:
                with contextlib.suppress(Exception):
                    self.remove_resource(name, **arguments)

    def __call__(self, test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run_async(*words: Any, **arguments: Any) -> Any:
                with self._resource(arguments) as all_arguments:
                    return await test(*words, **all_arguments)

            return run_async

        @functools.wraps(test)
        def run(*words: Any, **arguments: Any) -> Any:
            with self._resource(arguments) as all_arguments:
                return test(*words, **all_arguments)

        return run


class ResourceGroupPreparer(AzureMgmtPreparer):
    """A resource group, of which there is none here."""

    def create_resource(self, name: str, **_: Any) -> dict[str, Any]:
        return {"resource_group": FakeResource(name), "location": "here"}


class PowerShellPreparer:
    """A decorator that hands over what the environment would name."""

    def __init__(self, prefix: str, **_: Any) -> None:
        self._prefix = prefix

    def __call__(self, test: Callable[..., Any]) -> Callable[..., Any]:
        names: dict[str, Callable[[], str]] = {
            "servicebus_connection_str": NAMESPACE.connection_string,
            "servicebus_fully_qualified_namespace": lambda: NAMESPACE.address,
            "servicebus_sas_policy": lambda: POLICY,
            "servicebus_sas_key": lambda: KEY,
        }
        parameters = inspect.signature(test).parameters
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())

        def arguments() -> dict[str, Any]:
            return {name: make() for name, make in names.items() if takes_all or name in parameters}

        if inspect.iscoroutinefunction(test):

            async def run_async(self: Any, **others: Any) -> Any:
                return await test(self, **{**arguments(), **others})

            product: Callable[..., Any] = run_async
        else:

            def run(self: Any, **others: Any) -> Any:
                return test(self, **{**arguments(), **others})

            product = run
        functools.update_wrapper(product, test)
        # Pytest would look for fixtures of these names.
        del product.__wrapped__  # type: ignore[attr-defined]
        return product


def unchanged(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test that something records elsewhere."""
    return test


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing: there is no recording to make clean."""


# Azure Resource Manager, as the tests use it.


class AccessRights:
    manage, send, listen = "Manage", "Send", "Listen"


class Model(types.SimpleNamespace):
    """A description of something to be made."""


class _Done:
    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


class _Namespaces:
    def begin_create_or_update(self, *_: Any) -> _Done:
        NAMESPACE.served  # noqa: B018 - starts it
        return _Done(NAMESPACE)

    def list_keys(self, group: str, name: str, rule: str) -> Model:
        policy, key = _rules.get(rule, (POLICY, KEY))
        return Model(
            primary_connection_string=NAMESPACE.connection_string(policy, key),
            key_name=policy,
            primary_key=key,
        )

    def create_or_update_authorization_rule(self, group: str, namespace: str, name: str, rule: Any) -> Model:
        _rules[name] = (name, _key_with(name, rule.rights, "*"))
        return Model(name=name)

    def delete(self, *_: Any) -> None:
        pass

    def delete_authorization_rule(self, *_: Any) -> None:
        pass


_rules: dict[str, tuple[str, str]] = {}


def _key_with(name: str, rights: Any, path: str) -> str:
    """Give rights in the whole namespace, which has none of its own here: each entity has the rule."""
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    for queue in list(NAMESPACE.administration.list_queues()):
        if path in ("*", queue.name):
            _add_rule(queue, name, rights, key)
    return key


def _add_rule(queue: QueueProperties, name: str, rights: Any, key: str) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule", rights=list(rights), key_name=name, primary_key=key,
        secondary_key=key, claim_type="SharedAccessKey", claim_value="None",
    )  # fmt: skip
    queue.authorization_rules = [*(queue.authorization_rules or []), rule]
    NAMESPACE.administration.update_queue(queue)


class _Queues:
    def create_or_update(self, group: str, namespace: str, name: str, queue: Any) -> FakeResource:
        NAMESPACE.administration.create_queue(name, **vars(queue))
        return FakeResource(name)

    def delete(self, group: str, namespace: str, name: str) -> None:
        NAMESPACE.administration.delete_queue(name)

    def create_or_update_authorization_rule(
        self, group: str, namespace: str, queue: str, name: str, rule: Any
    ) -> Model:
        _rules[name] = (name, _key_with(name, rule.rights, queue))
        return Model(name=name)

    def list_keys(self, group: str, namespace: str, queue: str, name: str) -> Model:
        policy, key = _rules[name]
        return Model(primary_connection_string=NAMESPACE.connection_string(policy, key, queue))

    def delete_authorization_rule(self, *_: Any) -> None:
        pass


class _Topics:
    def create_or_update(self, group: str, namespace: str, name: str, _: Any) -> FakeResource:
        NAMESPACE.administration.create_topic(name)
        return FakeResource(name)

    def delete(self, group: str, namespace: str, name: str) -> None:
        NAMESPACE.administration.delete_topic(name)


class _Subscriptions:
    def create_or_update(
        self, group: str, namespace: str, topic: str, name: str, subscription: Any
    ) -> FakeResource:
        NAMESPACE.administration.create_subscription(topic, name, **vars(subscription))
        return FakeResource(name)

    def delete(self, group: str, namespace: str, topic: str, name: str) -> None:
        NAMESPACE.administration.delete_subscription(topic, name)


class ServiceBusManagementClient:
    """What makes and removes entities."""

    def __init__(self) -> None:
        self.namespaces, self.queues = _Namespaces(), _Queues()
        self.topics, self.subscriptions = _Topics(), _Subscriptions()


class RecordedTestCase:
    """The base of test classes."""

    is_live = True

    @staticmethod
    def await_prepared_test(test: Callable[..., Any]) -> Callable[..., Any]:
        """Return a test that is awaited as it is."""
        return test


def _module(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(members)
    sys.modules[name] = module


_module(
    "devtools_testutils",
    AzureMgmtPreparer=AzureMgmtPreparer,
    AzureMgmtRecordedTestCase=RecordedTestCase,
    AzureRecordedTestCase=RecordedTestCase,
    AzureTestError=AssertionError,
    CachedResourceGroupPreparer=ResourceGroupPreparer,
    FakeResource=FakeResource,
    PowerShellPreparer=PowerShellPreparer,
    RandomNameResourceGroupPreparer=ResourceGroupPreparer,
    ReservedResourceNameError=AssertionError,
    add_general_regex_sanitizer=nothing,
    get_credential=get_credential,
    get_region_override=lambda region: region,
    recorded_by_proxy=unchanged,
    set_custom_default_matcher=nothing,
)
_module("devtools_testutils.aio", recorded_by_proxy_async=unchanged)
_module("devtools_testutils.resource_testcase", RESOURCE_GROUP_PARAM="resource_group")
_module(
    "devtools_testutils.sanitizers",
    add_remove_header_sanitizer=nothing,
    add_general_regex_sanitizer=nothing,
    add_oauth_response_sanitizer=nothing,
)
_module("azure.common", AzureHttpError=HttpResponseError, AzureConflictHttpError=ResourceExistsError)
_module("azure.mgmt")
_module("azure.mgmt.resource", ResourceManagementClient=Model)
_module("azure.mgmt.servicebus", ServiceBusManagementClient=ServiceBusManagementClient)
_module(
    "azure.mgmt.servicebus.models",
    AccessRights=AccessRights,
    SBAuthorizationRule=Model,
    SBQueue=Model,
    SBSubscription=Model,
)


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """Record nothing."""


def pytest_sessionstart() -> None:
    """Have the tests connect to the door of this process, and make no resource group."""
    os.environ["SERVICEBUS_RESOURCE_GROUP"] = "here"
    if "PYTEST_XDIST_WORKER" in os.environ or not os.environ.get("PYTEST_XDIST"):
        os.environ["SERVICEBUS_ENDPOINT_SUFFIX"] = f":{NAMESPACE.served.port}"


def pytest_unconfigure() -> None:
    """Stop the door."""
    NAMESPACE.end()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that a file names."""
    without = set(Path(os.environ["LAZARETTO_TEST_WITHOUT"]).read_text("utf-8").splitlines())
    items[:] = [item for item in items if item.name not in without]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
