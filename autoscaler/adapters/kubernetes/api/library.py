"""The parts of kubernetes_asyncio that the daemon uses: configuration, credentials and TLS, without generated models.

The package imports 850 modules of models as soon as one of its modules is imported: 33 MB and a quarter of a second.
So its packages are left empty here until somebody wants more of them, and the modules that connect are imported.
"""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any


def _leave_empty(name: str, parent: ModuleType | None = None) -> ModuleType:
    """Put a package in place whose `__init__.py` runs when an attribute of it is read that is no module."""
    spec = PathFinder.find_spec(name, None if parent is None else list(parent.__path__))
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name}", name=name)
    package, loader = module_from_spec(spec), spec.loader

    def find(attribute: str) -> Any:
        if attribute.startswith("__") and attribute != "__version__":  # what Python asks of any module
            raise AttributeError(attribute)
        try:
            return import_module(f"{name}.{attribute}")
        except ModuleNotFoundError:
            vars(package).pop("__getattr__", None)
            loader.exec_module(package)
            return getattr(package, attribute)

    vars(package)["__getattr__"] = find
    sys.modules[name] = package
    if parent is not None:
        setattr(parent, name.rpartition(".")[2], package)
    return package


if "kubernetes_asyncio" not in sys.modules:  # else somebody has all of it already
    _client = _leave_empty("kubernetes_asyncio.client", _leave_empty("kubernetes_asyncio"))
    _leave_empty("kubernetes_asyncio.client.models", _client)
    from kubernetes_asyncio.client import api_client, configuration

    vars(_client).update(ApiClient=api_client.ApiClient, Configuration=configuration.Configuration)

from kubernetes_asyncio.client import ApiClient, Configuration  # noqa: E402
from kubernetes_asyncio.client.rest import RESTClientObject  # noqa: E402
from kubernetes_asyncio.config import (  # noqa: E402
    ConfigException,
    list_kube_config_contexts,
    load_incluster_config,
    load_kube_config,
)
from kubernetes_asyncio.config.incluster_config import SERVICE_HOST_ENV_NAME  # noqa: E402

__all__ = [
    "SERVICE_HOST_ENV_NAME",
    "ApiClient",
    "ConfigException",
    "Configuration",
    "RESTClientObject",
    "list_kube_config_contexts",
    "load_incluster_config",
    "load_kube_config",
]
