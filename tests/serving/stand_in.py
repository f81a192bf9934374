#!/usr/bin/env python3
"""The python of an environment with vLLM, as far as `egpo.serving` sees it: it says what it has, and serves.

STAND_IN tells how: `ready`, `silent` (listens to nobody), `broken` (ends at once), `other_name` (serves another model),
`deaf` (does not end when asked to, and has a child), `errors` (answers 500 to everything), `no_gpu` (ends as a vLLM for
GPUs does where there are none).
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import time


class Models(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if os.environ["STAND_IN"] == "errors":
            self.send_error(500)
            return
        name = sys.argv[sys.argv.index("--served-model-name") + 1]
        name += "-of-another" * (os.environ["STAND_IN"] == "other_name")
        body = json.dumps({"data": [{"id": name}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve():
    how = os.environ["STAND_IN"]
    print(f"pids {os.getpid()}", flush=True)
    if how == "broken":
        raise SystemExit("\x1b[31mno memory for the cache")
    if how == "no_gpu":
        raise RuntimeError("Failed to infer device type, please set the environment variable ...")
    if how == "silent":
        print("loading for ever", flush=True)
        time.sleep(600)
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        print(f"pids {child.pid}", flush=True)
    host, port = (sys.argv[sys.argv.index(word) + 1] for word in ("--host", "--port"))
    http.server.HTTPServer((host, int(port)), Models).serve_forever()


def parse():
    """Answer as vLLM's parser would: its options, and the sizes that the command line gives."""
    words = sys.argv[3:]
    given = {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}
    sizes = [int(given.get(f"--{kind}-parallel-size", 1)) for kind in ("tensor", "data", "pipeline")]
    names = ["tensor-parallel-size", "data-parallel-size", "pipeline-parallel-size", "max-num-seqs", "no-enforce-eager"]
    fault = "argument --max-num-seqs: invalid value: 'many'" * (given.get("--max-num-seqs") == "many")
    share = float(given.get("--gpu-memory-utilization", 0.9))
    keys = ("tensor_parallel", "data_parallel", "pipeline_parallel")
    names += ["enforce-eager", "gpu-memory-utilization", "disable-log-stats", *(f"filler-{n}" for n in range(30))]
    short = {"tp": "tensor-parallel-size"}
    answer = {"names": names, "short": short, "fault": fault, "memory_share": share}
    print("OPTIONS" + json.dumps(answer | dict(zip(keys, sizes, strict=True))))


if sys.argv[1] == "-c" and "OPTIONS" in sys.argv[2]:
    parse()
elif sys.argv[1] == "-c":
    print(json.dumps({"parts": os.environ.get("STAND_IN_PARTS", "vllm").split(), "cpu": True}))
else:
    serve()
