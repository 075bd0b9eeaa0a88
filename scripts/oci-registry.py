#!/usr/bin/env python3
"""A registry of the whole OCI distribution specification, in memory, for tests of pulls through a mirror.

  oci-registry.py PORT [FRONT MIRROR NAME]

Serves on PORT of 127.0.0.1. On FRONT it takes pushes as well, and answers GET and HEAD of what can be
pulled from the mirror on port MIRROR, which knows the registry by NAME. Lists come in pages of at most 100.
"""
import hashlib
import http.client
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlencode

MOST = 100
NAME = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
PATH = re.compile(rf"/v2/({NAME})/(manifests|blobs|tags|referrers)/(.+)")
lock = threading.Lock()
blobs, manifests, tags, uploads = {}, {}, {}, {}
ports = [int(word) for word in sys.argv[1:4]]


def digest(algorithm, content):
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"


def is_digest(text):
    return re.fullmatch(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}", text)


class Registry(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, content=b"", **headers):
        self.send_response_only(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status, code):
        self.answer(status, json.dumps({"errors": [{"code": code, "message": code}]}).encode())

    def body(self):
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def handle_any(self):
        content = self.body()
        path, _, query = self.path.partition("?")
        path, query = unquote(path), dict(parse_qsl(query, keep_blank_values=True))
        if path in ("/v2", "/v2/"):
            return self.answer(200, b"{}")
        found = PATH.fullmatch(path)
        if not found:
            return self.refuse(404, "NAME_INVALID")
        name, kind, what = found.groups()
        if self.server.mirror and self.command in ("GET", "HEAD") and not what.startswith("uploads/"):
            return self.through_mirror()
        with lock:
            if kind == "blobs" and what.startswith("uploads/"):
                return self.upload(name, what[8:], query, content)
            if kind == "manifests" and self.command == "PUT":
                return self.put_manifest(name, what, content)
            if self.command not in ("GET", "HEAD"):
                return self.refuse(405, "UNSUPPORTED")
            return getattr(self, f"get_{kind}")(name, what, query)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def through_mirror(self):
        """The mirror's answer, with its name of the registry taken out of links."""
        _, port, name = self.server.mirror
        upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
        upstream.request(self.command, f"/v2/{name}/{self.path[4:]}", headers=headers)
        answer = upstream.getresponse()
        content = answer.read()
        self.send_response_only(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in ("connection", "transfer-encoding"):
                self.send_header(key, value.replace(f"</v2/{name}/", "</v2/"))
        if "content-length" not in answer.headers and self.command == "GET":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        upstream.close()

    def upload(self, name, session, query, content):
        here = f"/v2/{name}/blobs/"
        if self.command == "POST":
            mount, source = query.get("mount"), query.get("from")
            known = [n for n, d in blobs if d == mount and source in (None, n)]
            if known:
                blobs[name, mount] = blobs[known[0], mount]
                return self.answer(201, Location=here + mount, Docker_Content_Digest=mount)
            session = str(len(uploads) + 1)
            uploads[session] = b""
            if "digest" not in query:
                return self.answer(202, Location=f"{here}uploads/{session}", Range="0-0")
        if uploads.get(session) is None:
            return self.refuse(404, "BLOB_UPLOAD_UNKNOWN")
        status = {"Location": f"{here}uploads/{session}"}
        if self.command == "DELETE":
            uploads[session] = None
            return self.answer(204)
        if self.command in ("PATCH", "PUT", "POST"):
            begins = self.headers.get("content-range", "").partition("-")[0]
            if content and begins and begins != str(len(uploads[session])):
                return self.answer(416, Range=f"0-{max(len(uploads[session]), 1) - 1}", **status)
            uploads[session] += content
        if self.command in ("PUT", "POST"):
            wanted, got = query.get("digest", ""), uploads[session]
            if not is_digest(wanted) or digest(wanted.split(":")[0], got) != wanted:
                return self.refuse(400, "DIGEST_INVALID")
            blobs[name, wanted], uploads[session] = got, None
            return self.answer(201, Location=here + wanted, Docker_Content_Digest=wanted)
        held = f"0-{max(len(uploads[session]), 1) - 1}"
        self.answer(202 if self.command == "PATCH" else 204, Range=held, **status)

    def put_manifest(self, name, reference, content):
        algorithm = reference.split(":")[0] if is_digest(reference) else "sha256"
        own = digest(algorithm, content)
        if ":" in reference and own != reference:
            return self.refuse(400, "DIGEST_INVALID")
        if ":" not in reference and not TAG.fullmatch(reference):
            return self.refuse(400, "TAG_INVALID")
        try:
            parsed = json.loads(content)
        except ValueError:
            return self.refuse(400, "MANIFEST_INVALID")
        manifests[name, own] = (self.headers.get("content-type", ""), content, parsed)
        if ":" not in reference:
            tags.setdefault(name, {})[reference] = own
        headers = {"OCI_Subject": parsed["subject"]["digest"]} if parsed.get("subject") else {}
        self.answer(201, Location=f"/v2/{name}/manifests/{own}", Docker_Content_Digest=own, **headers)

    def get_manifests(self, name, reference, _):
        own = tags.get(name, {}).get(reference, reference)
        if (name, own) not in manifests:
            return self.refuse(404, "MANIFEST_UNKNOWN")
        kind, content, _ = manifests[name, own]
        self.answer(200, content, Content_Type=kind, Docker_Content_Digest=own)

    def get_blobs(self, name, own, _):
        content = blobs.get((name, own))
        if content is None:
            return self.refuse(404, "BLOB_UNKNOWN")
        headers = {"Content_Type": "application/octet-stream", "Docker_Content_Digest": own}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("range", ""))
        if not wanted or (wanted[1] and wanted[2] and int(wanted[2]) < int(wanted[1])):
            return self.answer(200, content, **headers)
        first, last = int(wanted[1] or max(len(content) - int(wanted[2] or 0), 0)), len(content) - 1
        last = min(int(wanted[2]), last) if wanted[1] and wanted[2] else last
        if first >= len(content):
            return self.answer(416, Content_Range=f"bytes */{len(content)}")
        headers["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
        self.answer(206, content[first : last + 1], **headers)

    def page(self, query, names, key):
        """The part of a sorted list that is asked for, and the link to what follows."""
        most, last = min(int(query.get("n", MOST)), MOST), query.get("last", "")
        rest = [name for name in sorted(names) if name > last]
        if not most or len(rest) <= most:
            return rest[:most], {}
        query = urlencode({**query, "n": most, "last": rest[most - 1]})
        return rest[:most], {"Link": f'<{unquote(self.path.split("?")[0])}?{query}>; rel="next"'}

    def get_tags(self, name, _, query):
        if not any(n == name for n, _ in manifests):
            return self.refuse(404, "NAME_UNKNOWN")
        page, headers = self.page(query, tags.get(name, {}), "tags")
        content = json.dumps({"name": name, "tags": page}).encode()
        self.answer(200, content, Content_Type="application/json", **headers)

    def get_referrers(self, name, subject, query):
        if not is_digest(subject):
            return self.refuse(400, "DIGEST_INVALID")
        found, headers = {}, {}
        for (repository, own), (kind, content, parsed) in manifests.items():
            if repository == name and (parsed.get("subject") or {}).get("digest") == subject:
                artifact = parsed.get("artifactType") or (parsed.get("config") or {}).get("mediaType")
                found[own] = {"mediaType": kind, "digest": own, "size": len(content)}
                found[own].update({"artifactType": artifact} if artifact else {})
                found[own].update({"annotations": parsed["annotations"]} if parsed.get("annotations") else {})
        if wanted := query.get("artifactType"):
            found = {own: entry for own, entry in found.items() if entry.get("artifactType") == wanted}
            headers["OCI_Filters_Applied"] = "artifactType"
        page, link = self.page(query, found, "referrers")
        kind = "application/vnd.oci.image.index.v1+json"
        index = {"schemaVersion": 2, "mediaType": kind, "manifests": [found[own] for own in page]}
        self.answer(200, json.dumps(index).encode(), Content_Type=kind, **headers, **link)


class Server(ThreadingHTTPServer):
    request_queue_size = 64
    mirror = None


if len(sys.argv) > 2:
    front = Server(("127.0.0.1", ports[1]), Registry)
    front.mirror = (ports[1], ports[2], sys.argv[4])
    threading.Thread(target=front.serve_forever, daemon=True).start()
Server(("127.0.0.1", ports[0]), Registry).serve_forever()
