import os
import signal
import subprocess
import sys
import threading

import pytest

from dapo_cli.run.signals import StopRequested, StopSignals


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_the_first_signal_asks_and_the_loop_stops_at_a_safe_point(number, name):
    before = signal.getsignal(number)
    announced = []
    with StopSignals(announced.append) as stop:
        stop.raise_if_requested()
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        with pytest.raises(StopRequested, match=f"stopped by {name}") as error:
            stop.raise_if_requested()
    assert error.value.exit_code == 130
    assert announced == [f"{name}: stopping after this stage, then saving; Ctrl-C again aborts at once"]
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_aborts_at_once_and_a_second_sigterm_does_not():
    with StopSignals(lambda text: None) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_stop_can_be_asked_for_without_a_signal_and_the_first_reason_stays():
    stop = StopSignals()
    stop.request("train.stop_after_seconds")
    stop.request("later")
    with pytest.raises(StopRequested, match=r"train\.stop_after_seconds"):
        stop.raise_if_requested()


def test_in_another_thread_handlers_are_left_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def body():
        with StopSignals() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


def test_a_process_told_by_sigterm_finishes_its_stage_and_exits_130():
    program = """
import time
from dapo_cli.run.signals import StopRequested, StopSignals
try:
    with StopSignals() as stop:
        while True:
            print("stage", flush=True)
            time.sleep(0.05)
            print("stage done", flush=True)
            stop.raise_if_requested()
except StopRequested as error:
    print("saved", flush=True)
    raise SystemExit(error.exit_code)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "stage\n"
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out.endswith("stage done\nsaved\n")
    assert "SIGTERM: stopping after this stage" in err
