"""What a request for network access comes to: presets, credentials, and the bound of its tenant."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.errors import InternalError, InvalidRequest
from sandboxd.models.network import AllowedHost, NetworkAccess
from sandboxd.network.access import EgressAccess, bound_of, check_options, needs_packages, plan_access
from sandboxd.network.host_names import parse_target
from sandboxd.network.package_sources import PackageSources, SourceLogin
from sandboxd.network.rules import EgressRule
from sandboxd.network_settings import NetworkOptions

SOURCES = PackageSources(
    rules=(EgressRule("index.example", 443, private=True),),
    env={"PIP_INDEX_URL": "https://index.example/simple"},
    logins=(SourceLogin("index.example", 443, "user", "password"),),
)
CREDENTIALS: dict[str, Any] = {
    "github": {"host": "api.forge.example", "variable": "TOKEN"},
    "internal": {"host": "*.corp.example", "port": 8443, "private": True, "variable": "TOKEN"},
    "theirs": {"host": "theirs.example", "variable": "TOKEN", "tenants": ["other"]},
}


def options(**tables: Any) -> NetworkOptions:
    return NetworkOptions.model_validate(
        {"credentials": CREDENTIALS, "presets": {"git": ["forge.example:443"]}, **tables}
    )


def access(*allow: str | AllowedHost, credentials: tuple[str, ...] = ()) -> NetworkAccess:
    return NetworkAccess(allow=list(allow), credentials=list(credentials))


def plan(network: NetworkAccess, settings: NetworkOptions | None = None, tenant: str = "acme") -> EgressAccess:
    return plan_access(tenant, network, settings or options(), SOURCES)


def texts(planned: EgressAccess) -> list[str]:
    return [rule.text for rule in planned.policy.rules]


def bounded(*allow: str | dict[str, object], credentials: tuple[str, ...] = (), tenant: str = "acme") -> NetworkOptions:
    return options(tenants={tenant: {"allow": list(allow), "credentials": list(credentials)}})


def test_an_empty_request_allows_nothing() -> None:
    planned = plan(access())
    assert (planned.policy.rules, planned.credentials, planned.presets, planned.env) == ((), (), (), {})
    assert planned.sources is None


def test_hosts_and_presets_become_rules() -> None:
    planned = plan(
        access("a.example", AllowedHost(host="b.example", port=80, private=True), "preset:git", "preset:git")
    )
    assert texts(planned) == ["a.example", "b.example:80", "forge.example:443"]
    assert planned.presets == ("git",)
    assert planned.env == {}
    assert planned.sources is None


def test_the_preset_packages_comes_with_the_configuration_of_clients() -> None:
    planned = plan(access("preset:packages"))
    assert planned.policy.rules == SOURCES.rules
    assert planned.env == SOURCES.env
    assert planned.sources is SOURCES


def test_the_preset_packages_needs_the_sources() -> None:
    with pytest.raises(InternalError):
        plan_access("acme", access("preset:packages"), options(), None)
    assert plan_access("acme", access("a.example"), options(), None).sources is None


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        InvalidRequest, match=r"^cannot use the preset 'gti': the presets are preset:packages, preset:git$"
    ):
        plan(access("preset:gti"))


def test_an_invalid_rule_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="first part"):
        plan(access("*"))


def test_the_host_of_a_credential_is_allowed_too() -> None:
    planned = plan(access(credentials=("github", "internal", "github")))
    assert planned.credentials == ("github", "internal")
    assert planned.policy.rules == (
        EgressRule("api.forge.example", 443, private=False),
        EgressRule("*.corp.example", 8443, private=True),
    )


def test_a_tenant_cannot_tell_a_credential_of_another_one_from_none() -> None:
    refusals = []
    for name in ("theirs", "absent"):
        with pytest.raises(InvalidRequest) as refusal:
            plan(access(credentials=(name,)))
        refusals.append(str(refusal.value).replace(name, "NAME"))
    assert set(refusals) == {
        "cannot use the credential NAME: this tenant has no such credential; it has github, internal"
    }
    assert plan(access(credentials=("theirs",)), tenant="other").credentials == ("theirs",)


def test_a_credential_outside_the_bound_is_refused_as_if_it_did_not_exist() -> None:
    settings = bounded("*.example.org", credentials=("github", "theirs"))
    assert plan(access(credentials=("github",)), settings).credentials == ("github",)
    for name in ("internal", "theirs", "absent"):
        with pytest.raises(InvalidRequest, match=r"no such credential; it has github$"):
            plan(access(credentials=(name,)), settings)


@pytest.mark.parametrize(
    "item",
    [
        "www.example.org",
        "*.a.example.org:443",
        "db.example:5432",
        AllowedHost(host="db.example", port=5432, private=True),
        "api.forge.example:443",
        "forge.example:443",
        "preset:git",
        "preset:packages",
        AllowedHost(host="index.example", port=443, private=True),
    ],
)
def test_what_the_bound_covers_is_allowed(item: str | AllowedHost) -> None:
    settings = bounded(
        "*.example.org",
        {"host": "db.example", "port": 5432, "private": True},
        "preset:git",
        "preset:packages",
        credentials=("github",),
    )
    assert plan(access(item), settings).policy.rules


@pytest.mark.parametrize(
    ("item", "named"),
    [
        ("example.org", "example.org"),
        ("*.org.example", "*.org.example"),
        ("db.example", "db.example"),
        ("db.example:80", "db.example:80"),
        (AllowedHost(host="www.example.org", private=True), 'www.example.org with "private": true'),
        ("preset:git", "forge.example:443"),
        ("preset:packages", 'index.example:443 with "private": true'),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_what_exceeds_the_bound_is_named_with_what_is_allowed(item: str | AllowedHost, named: str) -> None:
    settings = bounded("*.example.org", "db.example:5432", credentials=("github", "theirs"))
    with pytest.raises(InvalidRequest) as refusal:
        plan(access("www.example.org", item), settings)
    assert str(refusal.value) == (
        f"cannot allow {named}: sandboxes of this tenant may reach *.example.org, db.example:5432,"
        " the host of the credential github"
    )


def test_a_long_refusal_is_cut() -> None:
    with pytest.raises(InvalidRequest, match=r"and 236 more: sandboxes of this tenant may reach nothing$"):
        plan(access(*(f"{number}.example" for number in range(256))), bounded())


def test_the_bound_of_a_tenant_wins_over_that_of_all_others() -> None:
    settings = options(tenants={"acme": {"allow": ["a.example"]}, "*": {"allow": ["b.example"]}})
    assert texts(plan(access("a.example"), settings)) == ["a.example"]
    assert texts(plan(access("b.example"), settings, tenant="other")) == ["b.example"]
    for tenant, host in (("acme", "b.example"), ("other", "a.example")):
        with pytest.raises(InvalidRequest):
            plan(access(host), settings, tenant)
    assert bound_of("acme", options()) is None


def test_the_package_managers_are_asked_only_if_the_request_or_the_bound_names_them() -> None:
    packages = access("preset:packages")
    assert needs_packages(packages, None)
    assert needs_packages(access("a.example"), packages)
    assert not needs_packages(access("a.example", "preset:git"), access("packages"))


def test_a_planned_policy_matches_targets() -> None:
    planned = plan(access("preset:packages", credentials=("internal",)))
    rule = planned.policy.match(parse_target("git.corp.example:8443"))
    assert rule == EgressRule("*.corp.example", 8443, private=True)
    assert planned.policy.match(parse_target("theirs.example:443")) is None


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({"presets": {"bad": ["*.com"]}}, r"network\.presets\.bad: .*at least two parts"),
        ({"presets": {"nested": ["preset:git"]}}, r"network\.presets\.nested"),
        ({"credentials": {"x": {"host": "a.example:443", "variable": "V"}}}, r"network\.credentials\.x"),
        ({"tenants": {"acme": {"allow": ["127.1"]}}}, r"network\.tenants\.acme: .*ends in a number"),
        ({"tenants": {"acme": {"allow": ["preset:gti"]}}}, r"network\.tenants\.acme: .*'gti'"),
        ({"tenants": {"*": {"credentials": ["absent"]}}}, r"network\.tenants\.\*: no credential is named absent"),
    ],
)
def test_settings_that_no_request_could_use_are_found_at_the_start(tables: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^cannot use the setting {named}"):
        check_options(options(**tables))


def test_valid_settings_pass() -> None:
    check_options(NetworkOptions())
    check_options(bounded("preset:git", "preset:packages", "*.example.org", credentials=("github",)))
