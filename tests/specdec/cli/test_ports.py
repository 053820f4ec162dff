import socket

import pytest

from specdec.cli.ports import choose_ports

LOCAL = "127.0.0.1"


def test_zeros_become_distinct_free_ports_and_others_stay() -> None:
    (fixed,) = choose_ports([(LOCAL, 0)])
    chosen = choose_ports([(LOCAL, port) for port in (0, fixed, 0, 0)])
    assert chosen[1] == fixed
    assert len(set(chosen)) == 4
    assert 0 not in chosen
    for port in chosen:
        with socket.create_server((LOCAL, port)):
            pass


def test_a_port_in_use_is_refused_by_number() -> None:
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} of 127.0.0.1 cannot be had: .*in use"):
            choose_ports([(LOCAL, 0), (LOCAL, port)])


def test_a_port_wanted_twice_is_refused() -> None:
    (port,) = choose_ports([(LOCAL, 0)])
    with pytest.raises(OSError, match=f"port {port} is wanted twice"):
        choose_ports([(LOCAL, port), (LOCAL, port)])


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match=r"203\.0\.113\.1"):
        choose_ports([("203.0.113.1", 0)])
