"""The one place where policies are made: for the service, a shadow, a candidate, the command line, a replay.

    name ──▶ a built-in one (policies.registry)
    path/file.py:ClassName, source ──▶ the class in that text ──▶ made with its settings
                                       └─ it imports verl: in a process of its own (services.policy.verl)

Imports no shell, for replays make policies, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.errors import ConfigError
from bus.events import Value
from policies.protocol import Policy
from policies.registry import create
from services.code import service_code
from services.policy.file_rules import imports_verl
from services.policy.file_settings import settings_of
from services.policy.loading import load_class, syntax_of, told
from services.policy.source import file_and_class, is_in_file
from services.policy.verl_making import make_verl_policy

VERL = "services.policy.verl"
"""What runs a policy that was written for verl."""


def make_policy(name: str, params: Mapping[str, Value], source: str = "") -> Policy:
    """A new policy. `source`: the text of the user's file, empty for a built-in one. Raises ConfigError with file, line and reason."""
    if not is_in_file(name):
        return create(name, params)
    if imports_verl(syntax_of(name, source)):
        return make_verl_policy(name, params, source)
    kind = load_class(name, source)
    given, recorded = settings_of(name, kind, params)
    try:
        policy = kind(**given)
    except (Exception, SystemExit) as error:  # whatever a user's class raises
        raise ConfigError(f"policy {name}: {kind.__name__} cannot be made:\n{told(error, file_and_class(name)[0])}") from error
    policy.identify(name, recorded)
    return policy


def policy_code(name: str, source: str = "") -> str:
    """Digest of what decides in the policy service with this policy, its text and all that it imports of ours. Raises ConfigError."""
    if is_in_file(name):
        module = VERL if imports_verl(syntax_of(name, source)) else ""
        return service_code("policy", module, policy_text=source)
    return service_code("policy", type(create(name, {})).__module__)
