#!/usr/bin/env python3
"""Datagrams through the link of the test of the units, and what is left of them at the far end.

    traffic.py send ADDRESS PORT RATE_BPS
    traffic.py count FILE PORT...
    traffic.py sink FILE DEVICE PORT...          streams of TCP in place of datagrams
    traffic.py rate FILE PORT FROM TO            Mbit/s of this time
    traffic.py least|most FILE PORT FROM TO S    Mbit/s of the S seconds in which fewest or most arrive
    traffic.py above FILE PORT FROM TO MBIT      seconds of tenths in which more arrives
    traffic.py lost FILE PORT FROM TO            datagrams that did not arrive

Times are seconds since the boot. Sizes are those of layer 2. `count` writes a line for each tenth of a second in which
datagrams arrived: the time, the port, the bytes, and the sequence numbers that are missing. `sink` does so for frames of TCP
that a device receives, also of those that TCP sends again.
"""

import selectors
import socket
import struct
import sys
import time

PAYLOAD = 1200
# Ethernet, IPv4 and UDP.
HEADERS = 14 + 20 + 8
# The type of IPv4 in Ethernet's header, the header's length, and the place of TCP in IPv4's protocols.
IPV4, ETHERNET, TCP = 0x0800, 14, 6
MTU = 1500
# asm-generic/socket.h. Python has no name for it.
SO_RCVBUFFORCE = 33
BIN_S = 0.1
NUMBER = struct.Struct("!Q")


def send(address, port, rate_bps):
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.connect((address, int(port)))
    gap_s = (PAYLOAD + HEADERS) * 8 / int(rate_bps)
    number, due_s = 0, time.monotonic()
    filling = bytes(PAYLOAD - NUMBER.size)
    while True:
        try:
            # The kernel has a sender wait whose class has no room.
            out.send(NUMBER.pack(number) + filling)
        except OSError:
            # No route for a moment. The number counts as lost.
            pass
        number += 1
        now_s = time.monotonic()
        due_s = max(due_s + gap_s, now_s)
        time.sleep(due_s - now_s)


def count(file, *ports):
    ready = selectors.DefaultSelector()
    for port in map(int, ports):
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        there.bind(("", port))
        ready.register(there, selectors.EVENT_READ, port)
    expected, bins, end_s = {}, {}, time.monotonic() + BIN_S
    with open(file, "w", encoding="ascii") as lines:
        while True:
            for key, _ in ready.select(max(end_s - time.monotonic(), 0)):
                number, = NUMBER.unpack_from(key.fileobj.recv(PAYLOAD))
                got = bins.setdefault(key.data, [0, 0])
                got[0] += PAYLOAD + HEADERS
                # A new sender begins with 0.
                got[1] += max(number - expected.get(key.data, number), 0)
                expected[key.data] = number + 1
            if time.monotonic() >= end_s:
                for port, (size, missing) in bins.items():
                    lines.write(f"{end_s:.2f} {port} {size} {missing}\n")
                lines.flush()
                bins, end_s = {}, end_s + BIN_S


def stream_of(head, size):
    """The port to which a frame of TCP goes, and its length on the wire. Frames that have not been split yet count as
    their parts, with a header each. Others have no port."""
    if size < ETHERNET + 40 or int.from_bytes(head[12:14], "big") != IPV4 or head[23] != TCP:
        return None, size
    at = ETHERNET + (head[ETHERNET] & 15) * 4
    headers = at + (head[at + 12] >> 4) * 4
    parts = -(-(size - headers) // (ETHERNET + MTU - headers))
    return int.from_bytes(head[at + 2:at + 4], "big"), size + headers * max(parts - 1, 0)


def sink(file, device, *ports):
    ready = selectors.DefaultSelector()
    for port in map(int, ports):
        ready.register(socket.create_server(("", port)), selectors.EVENT_READ, "listener")
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(IPV4))
    wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    wire.bind((device, IPV4))
    ready.register(wire, selectors.EVENT_READ, "wire")
    bins, end_s, head = {}, time.monotonic() + BIN_S, bytearray(128)
    with open(file, "w", encoding="ascii") as lines:
        while True:
            for key, _ in ready.select(max(end_s - time.monotonic(), 0)):
                if key.data == "wire":
                    size = wire.recv_into(head, len(head), socket.MSG_TRUNC)
                    port, size = stream_of(head, size)
                    bins[port] = bins.get(port, 0) + size
                elif key.data == "listener":
                    ready.register(key.fileobj.accept()[0], selectors.EVENT_READ, "stream")
                else:
                    try:
                        is_over = not key.fileobj.recv(1 << 18)
                    except ConnectionError:
                        is_over = True
                    if is_over:
                        ready.unregister(key.fileobj)
                        key.fileobj.close()
            if time.monotonic() >= end_s:
                for port, size in bins.items():
                    lines.write(f"{end_s:.2f} {port} {size} 0\n")
                lines.flush()
                bins, end_s = {}, end_s + BIN_S


def bins_of(file, port, from_s, to_s):
    """(time, bytes, missing) of each tenth of a second, also of those in which nothing arrived."""
    count_of_bins = int((float(to_s) - float(from_s)) / BIN_S)
    found = [(0, 0)] * count_of_bins
    with open(file, encoding="ascii") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) == 4 and fields[1] == port:
                place = int((float(fields[0]) - float(from_s)) / BIN_S)
                if float(fields[0]) >= float(from_s) and place < count_of_bins:
                    size, missing = found[place]
                    found[place] = (size + int(fields[2]), missing + int(fields[3]))
    return found


def mbit(size, seconds):
    return size * 8 / 1e6 / seconds


def windows(file, port, from_s, to_s, seconds):
    wide = round(float(seconds) / BIN_S)
    sizes = [size for size, _ in bins_of(file, port, from_s, to_s)]
    return [mbit(sum(sizes[at:at + wide]), wide * BIN_S) for at in range(len(sizes) - wide + 1)]


def main(verb, *words):
    if verb == "send":
        send(*words)
    elif verb == "count":
        count(*words)
    elif verb == "sink":
        sink(*words)
    elif verb == "rate":
        found = bins_of(*words)
        print(f"{mbit(sum(size for size, _ in found), len(found) * BIN_S):.2f}")
    elif verb in ("least", "most"):
        print(f"{(min if verb == 'least' else max)(windows(*words)):.2f}")
    elif verb == "above":
        *of, most = words
        print(f"{sum(rate > float(most) for rate in windows(*of, BIN_S)) * BIN_S:.1f}")
    elif verb == "lost":
        print(sum(missing for _, missing in bins_of(*words)))
    else:
        sys.exit(__doc__)


main(*sys.argv[1:])
