from ebbtide.server.daemon.restarts import Restarts


def test_backoff_grows_and_restarts_are_bounded() -> None:
    restarts = Restarts(7)
    pauses = []
    while restarts.remaining:
        pauses.append(restarts.record_restart())
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_by_default_there_are_no_restarts() -> None:
    assert Restarts(0).remaining == 0
