"""A hub on loopback with the endpoints that huggingface_hub calls for an upload, as huggingface.co answers them.

GET  /api/models/REPO                        visibility and files
POST /api/repos/create
POST /api/validate-yaml                      the metadata at the top of a card
POST /api/models/REPO/preupload/main         which files go to LFS
POST /REPO.git/info/lfs/objects/batch        where to put them
PUT  /lfs/OID, POST /lfs/verify
POST /api/models/REPO/commit/main            one JSON object per line
"""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

WRITER, READER = "hf_writer", "hf_reader"
"""Tokens: one may write, the other may read."""
LFS_ENDINGS = (".safetensors", ".bin")


@dataclass
class Repo:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


@dataclass
class Hub:
    """What the hub holds, and how it misbehaves: `failing` is a part of a path that is answered with `status`."""

    repos: dict[str, Repo] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    failing: str | None = None
    status: int = 503
    url: str = ""


class RefusedError(Exception):
    def __init__(self, status, message, code=None):
        self.status, self.message, self.code = status, message, code


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self):
        self.answer()

    do_POST = do_PUT = do_GET

    def log_message(self, *_):
        pass

    def answer(self):
        hub, path = self.hub, self.path.partition("?")[0]
        hub.requests.append(f"{self.command} {path}")
        body = self.body()
        try:
            if hub.failing is not None and hub.failing in path:
                raise RefusedError(hub.status, "out of order")
            value = self.routed(path, body)
            self.reply(200, value)
        except RefusedError as refused:
            code = {"X-Error-Code": refused.code} if refused.code else {}
            self.reply(refused.status, {"error": refused.message}, code | {"X-Error-Message": refused.message})

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().strip(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def reply(self, status, value, headers=None):
        content = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {
            "Content-Type": "application/json",
            "Content-Length": len(content),
            **(headers or {}),
        }.items():
            self.send_header(name, str(text))
        self.end_headers()
        self.wfile.write(content)

    def routed(self, path, body):
        if found := re.fullmatch(r"/lfs/([0-9a-f]{64})", path):  # signed addresses, without a token
            return self.stored(found[1], body)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in (WRITER, READER):
            raise RefusedError(401, "Invalid username or password.")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            return self.described(found[1])
        if path == "/api/validate-yaml":
            return self.validated(json.loads(body)["content"])
        if token == READER:
            raise RefusedError(403, "Forbidden: you must use a write token to upload to a repository.")
        return self.written(path, body)

    def written(self, path, body):
        if path == "/api/repos/create":
            return self.created(json.loads(body))
        if path == "/lfs/verify":
            asked = json.loads(body)
            return {"ok": len(self.hub.objects[asked["oid"]]) == asked["size"]}
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            return self.planned(json.loads(body))
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self.batch(json.loads(body))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            return self.committed(found[1], [json.loads(line) for line in body.splitlines()])
        raise RefusedError(404, f"no such address: {path}")

    def described(self, name):
        if name not in self.hub.repos:
            raise RefusedError(404, "Repository not found", "RepoNotFound")
        repo = self.hub.repos[name]
        files = [{"rfilename": file} for file in repo.files]
        return {"id": name, "private": repo.private, "siblings": files, "sha": "0" * 40}

    def created(self, asked):
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.repos:
            raise RefusedError(409, "You already created this model repo")
        self.hub.repos[name] = Repo(private=asked.get("visibility") == "private" or bool(asked.get("private")))
        return {"url": f"{self.hub.url}/{name}"}

    def validated(self, content):
        metadata = yaml.safe_load(content.split("---\n")[1])
        for result in metadata.get("model-index", [{}])[0].get("results", []):
            if not (result["task"]["type"] and result["dataset"]["type"] and result["metrics"]):
                raise RefusedError(400, "Invalid metadata")
        return {"errors": [], "warnings": []}

    def planned(self, asked):
        modes = {file["path"]: "lfs" if file["path"].endswith(LFS_ENDINGS) else "regular" for file in asked["files"]}
        return {"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]}

    def batch(self, asked):
        where = {"upload": {"href": f"{self.hub.url}/lfs/"}, "verify": {"href": f"{self.hub.url}/lfs/verify"}}
        return {
            "transfer": "basic",
            "objects": [
                one
                if one["oid"] in self.hub.objects
                else {**one, "actions": {**where, "upload": {"href": where["upload"]["href"] + one["oid"]}}}
                for one in asked["objects"]
            ],
        }

    def stored(self, oid, body):
        if hashlib.sha256(body).hexdigest() != oid:
            raise RefusedError(400, "digest does not match")
        self.hub.objects[oid] = body
        return {}

    def committed(self, name, lines):
        repo = self.hub.repos[name]
        for line in lines:
            key, value = line["key"], line["value"]
            if key == "header":
                repo.messages.append(value["summary"])
            elif key == "file":
                repo.files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                repo.files[value["path"]] = self.hub.objects[value["oid"]]
            elif key == "deletedFile":
                del repo.files[value["path"]]
            else:
                raise RefusedError(400, f"unknown operation {key}")
        oid = hashlib.sha1(repr(sorted(repo.files)).encode()).hexdigest()
        return {"success": True, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}", "commitOid": oid}


@contextmanager
def running_hub():
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("AnswersOfOne", (Answers,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
