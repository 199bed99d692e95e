"""EgressAccess: what a request for network access comes to, with presets, credentials and the tenant's bound applied.

Pure: it resolves no name, reads no secret and asks no tool. Tenants learn nothing of credentials that are not theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sandboxd.errors import InternalError, InvalidRequest
from sandboxd.models.network import AllowedHost, NetworkAccess
from sandboxd.network.host_names import shown
from sandboxd.network.package_sources import PackageSources
from sandboxd.network.rules import EgressPolicy, EgressRule, parse_rule
from sandboxd.network_settings import PACKAGES, CredentialOptions, NetworkOptions

_PRESET = "preset:"
_EVERY_OTHER_TENANT = "*"
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class EgressAccess:
    """What a sandbox may reach and use."""

    policy: EgressPolicy
    credentials: tuple[str, ...] = ()
    """The names of the credentials that its requests may use."""
    presets: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for the container, without secrets."""
    sources: PackageSources | None = None
    """The package sources with their logins and CA files, if the sandbox uses `preset:packages`."""


def plan_access(
    tenant: str, network: NetworkAccess, options: NetworkOptions, sources: PackageSources | None
) -> EgressAccess:
    """Return what a tenant's request comes to. Raise InvalidRequest for what is unknown or exceeds the bound.

    The sources must be given if `needs_packages` says so.
    """
    bound = bound_of(tenant, options)
    available = _available_credentials(tenant, options, bound)
    for name in network.credentials:
        if name not in available:
            # the same for one that does not exist, is another tenant's, or exceeds the bound
            listed = ", ".join(available) or "none"
            raise InvalidRequest(
                f"cannot use the credential {name}: this tenant has no such credential; it has {listed}"
            )
    rules = _rules_of(network, options, sources, available)
    if bound is not None:
        excess = _excess(rules, EgressPolicy(_rules_of(bound, options, sources, available)))
        if excess:
            most = _written(bound, available)
            raise InvalidRequest(f"cannot allow {_short(excess)}: sandboxes of this tenant may reach {_short(most)}")
    presets = _presets_in(network)
    used = sources if PACKAGES in presets else None
    return EgressAccess(
        policy=EgressPolicy(rules),
        credentials=tuple(dict.fromkeys(network.credentials)),
        presets=presets,
        env=used.env if used else {},
        sources=used,
    )


def needs_packages(network: NetworkAccess, bound: NetworkAccess | None) -> bool:
    """Return whether the package sources must be known to plan a request."""
    return any(PACKAGES in _presets_in(part) for part in (network, bound) if part is not None)


def bound_of(tenant: str, options: NetworkOptions) -> NetworkAccess | None:
    """Return the most that sandboxes of a tenant may ask for; None if there is no bound."""
    return options.tenants.get(tenant, options.tenants.get(_EVERY_OTHER_TENANT))


def check_options(options: NetworkOptions) -> None:
    """Raise InvalidRequest for a setting that no request could use, for the daemon to refuse when it starts."""
    for name, hosts in options.presets.items():
        _check_setting(f"presets.{name}", hosts)
    for name, credential in options.credentials.items():
        _check_setting(f"credentials.{name}", [_host_of(credential)])
    for tenant, bound in options.tenants.items():
        _check_setting(f"tenants.{tenant}", bound.allow, options)
        for name in bound.credentials:
            if name not in options.credentials:
                raise InvalidRequest(f"cannot use the setting network.tenants.{tenant}: no credential is named {name}")


def _check_setting(name: str, items: Iterable[str | AllowedHost], presets_of: NetworkOptions | None = None) -> None:
    try:
        for item in items:
            preset = _preset_of(item) if presets_of else None
            if presets_of and preset is not None:
                _refuse_unknown_preset(preset, presets_of)
            else:
                parse_rule(item)
    except InvalidRequest as error:
        raise InvalidRequest(f"cannot use the setting network.{name}: {error}") from None


def _available_credentials(
    tenant: str, options: NetworkOptions, bound: NetworkAccess | None
) -> dict[str, CredentialOptions]:
    return {
        name: credential
        for name, credential in options.credentials.items()
        if (not credential.tenants or tenant in credential.tenants) and (bound is None or name in bound.credentials)
    }


def _rules_of(
    network: NetworkAccess,
    options: NetworkOptions,
    sources: PackageSources | None,
    credentials: Mapping[str, CredentialOptions],
) -> list[EgressRule]:
    rules = [parse_rule(item) for item in network.allow if _preset_of(item) is None]
    for preset in _presets_in(network):
        rules += _preset_rules(preset, options, sources)
    rules += [parse_rule(_host_of(credentials[name])) for name in network.credentials if name in credentials]
    return rules


def _preset_rules(name: str, options: NetworkOptions, sources: PackageSources | None) -> Iterable[EgressRule]:
    _refuse_unknown_preset(name, options)
    if name != PACKAGES:
        return map(parse_rule, options.presets[name])
    if sources is None:
        raise InternalError(f"cannot plan {_PRESET}{PACKAGES}: the package managers of this host have not been asked")
    return sources.rules


def _refuse_unknown_preset(name: str, options: NetworkOptions) -> None:
    if name != PACKAGES and name not in options.presets:
        known = ", ".join(_PRESET + preset for preset in (PACKAGES, *options.presets))
        raise InvalidRequest(f"cannot use the preset {shown(name)}: the presets are {known}")


def _excess(rules: Iterable[EgressRule], bound: EgressPolicy) -> list[str]:
    return [_described(rule) for rule in rules if bound.covering(rule) is None]


def _written(bound: NetworkAccess, credentials: Iterable[str]) -> list[str]:
    """Return a bound as an error shows it, with presets by name."""
    hosts = [item if isinstance(item, str) else _described(parse_rule(item)) for item in bound.allow]
    return hosts + [f"the host of the credential {name}" for name in credentials]


def _described(rule: EgressRule) -> str:
    return f'{rule.text} with "private": true' if rule.private else rule.text


def _short(texts: list[str]) -> str:
    listed, more = texts[:_MAX_LISTED], len(texts) - _MAX_LISTED
    return (", ".join(listed) or "nothing") + (f" and {more} more" if more > 0 else "")


def _presets_in(network: NetworkAccess) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for item in network.allow if (name := _preset_of(item)) is not None))


def _preset_of(item: str | AllowedHost) -> str | None:
    return item.removeprefix(_PRESET) if isinstance(item, str) and item.startswith(_PRESET) else None


def _host_of(credential: CredentialOptions) -> AllowedHost:
    return AllowedHost(host=credential.host, port=credential.port, private=credential.private)
