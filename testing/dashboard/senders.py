# Sends datagrams by each of N devices p1 to pN: `python3 senders.py N BYTES A-SECOND`.
import socket
import sys
import time

devices, size, rate = (int(word) for word in sys.argv[1:])
sockets = []
for i in range(1, devices + 1):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"p%d" % i)
    sender.setblocking(False)
    sockets.append(sender)
begun, sent = time.monotonic(), 0
while True:
    while sent < (time.monotonic() - begun) * rate:
        sent += 1
        for sender in sockets:
            try:
                sender.sendto(bytes(size), ("192.0.2.2", 9))
            except BlockingIOError:
                # Its queue is full, as the link is.
                pass
    time.sleep(0.01)
