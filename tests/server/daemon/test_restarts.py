from ebbtide.server.daemon.restarts import Restarts


def test_pauses_grow_and_their_number_is_bounded() -> None:
    restarts = Restarts(7)
    pauses = []
    while restarts.remaining:
        pauses.append(restarts.next_delay_s())
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_by_default_there_is_none() -> None:
    assert Restarts(0).remaining == 0
