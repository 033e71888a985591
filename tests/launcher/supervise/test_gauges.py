"""The supervisor's gauges, scraped as Prometheus would."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsctl.errors import ConfigError
from dsctl.model.deployment import Deployment
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.supervise.gauges import Gauges, serving, where_of


def gauges() -> Gauges:
    found = Gauges()
    deployment = Deployment(
        profile="p",
        engine="process",
        endpoint=Endpoint(port=1),
        model="m",
        phase=Phase.READY,
        since=5.0,
        started=1.0,
        restarts=2,
    )
    found.tick(deployment, None)
    return found


def test_they_are_served_on_a_unix_socket_and_gone_afterwards(tmp_path: Path) -> None:
    place = tmp_path / "m.sock"
    with serving(gauges(), f"unix:{place}"):
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(place))) as client:
            answer = client.get("http://dsctl/metrics")
            assert client.get("http://dsctl/other").status_code == 404
        values = {
            (s.name, *s.labels.values()): s.value
            for family in text_string_to_metric_families(answer.text)
            for s in family.samples
        }
        assert values[("dsctl_restarts_total",)] == 2
        assert values[("dsctl_ready",)] == 1
        assert values[("dsctl_phase", "ready")] == 1
        assert values[("dsctl_phase", "loading")] == 0
    assert not place.exists()


def test_a_place_that_is_taken_does_not_stop_the_supervisor(tmp_path: Path) -> None:
    with serving(gauges(), f"unix:{tmp_path}/no/such/directory"):
        pass


@pytest.mark.parametrize("text", ["0.0.0.0:9100", "9100", "127.0.0.1:x", "unix:", "example.org:80"])
def test_only_loopback_or_a_socket_is_taken(text: str) -> None:
    with pytest.raises(ConfigError, match="--metrics"):
        where_of(text)
