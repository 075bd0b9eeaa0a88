#!/usr/bin/env python3
"""Takes whatever TCP connections send, and records how much of it arrived when and from whom.

    scripts/traffic-sink.py serve ADDRESS PORT FILE     appends a line `MILLISECONDS SOURCE BYTES` each 50 ms
    scripts/traffic-sink.py rate FILE SOURCE FROM TO    the mean rate of a source between two times, Mbit/s
    scripts/traffic-sink.py peak FILE SOURCE FROM TO    the highest rate within any 500 ms
    scripts/traffic-sink.py first FILE SOURCE           when its first bytes arrived
    scripts/traffic-sink.py from FILE SOURCE FROM LOW HIGH   when its rate within 200 ms was first from LOW to HIGH

Times are milliseconds of the Unix epoch. Rates are those of the payload.
"""

import os
import selectors
import socket
import sys
import time

STEP = 50


def serve(address: str, port: str, file: str) -> None:
    selector = selectors.DefaultSelector()
    listener = socket.create_server((address, int(port)), backlog=64)
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    arrived: dict[str, int] = {}
    step = time.time_ns() // 1_000_000 // STEP
    with open(file, "a", buffering=1, encoding="ascii") as out:
        while True:
            for key, _ in selector.select(STEP / 1000):
                if key.fileobj is listener:
                    connection, (source, *_) = listener.accept()
                    connection.setblocking(False)
                    selector.register(connection, selectors.EVENT_READ, source)
                    continue
                try:
                    data = key.fileobj.recv(1 << 20)
                except ConnectionError:
                    data = b""
                if data:
                    arrived[key.data] = arrived.get(key.data, 0) + len(data)
                else:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                if time.time_ns() // 1_000_000 // STEP != step:
                    break
            now = time.time_ns() // 1_000_000 // STEP
            if now != step:
                for source, count in arrived.items():
                    out.write(f"{step * STEP} {source} {count}\n")
                arrived, step = {}, now


def records(file: str, source: str) -> list[tuple[int, int]]:
    with open(file, encoding="ascii") as lines:
        fields = (line.split() for line in lines if line.endswith("\n"))
        return [(int(at), int(count)) for at, who, count in fields if who == source]


def rate_within(all_records: list[tuple[int, int]], begin: int, end: int) -> float:
    return sum(count for at, count in all_records if begin <= at < end) * 8 / 1000 / max(end - begin, 1)


def windows(all_records: list[tuple[int, int]], begin: int, end: int, length: int):
    for at in range(begin, max(end - length, begin) + 1, STEP):
        yield at, rate_within([r for r in all_records if at <= r[0] < at + length], at, at + length)


def main() -> None:
    command, *rest = sys.argv[1:]
    if command == "serve":
        serve(*rest)
        return
    file, source, *numbers = rest
    found = records(file, source)
    if command == "first":
        print(min((at for at, _ in found), default=""))
    elif command == "from":
        begin, low, high = int(numbers[0]), float(numbers[1]), float(numbers[2])
        end = max((at for at, _ in found), default=begin)
        print(next((at for at, rate in windows(found, begin, end, 200) if low <= rate <= high), ""))
    else:
        begin, end = map(int, numbers)
        mbit = rate_within(found, begin, end)
        if command == "peak":
            mbit = max(rate for _, rate in windows(found, begin, end, 500))
        print(f"{mbit:.1f}")


if __name__ == "__main__":
    os.nice(-5)
    main()
