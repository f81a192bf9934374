"""A server on loopback that answers BFCL with its own ground truth, or fails in a way that a test asks for."""

import ast
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DATA = Path(__file__).resolve().parents[3] / ".env-bfcl/lib"
USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)


def data_folder():
    return next(DATA.glob("python3.*/site-packages/bfcl_eval/data"))


def lines(name):
    return [json.loads(line) for line in (data_folder() / name).read_text().splitlines()]


class Golds:
    """Ground truth by the first user turn of each case."""

    def __init__(self, categories):
        self.turns = {}
        for category in categories:
            answers = {row["id"]: row["ground_truth"] for row in lines(f"possible_answer/BFCL_v4_{category}.json")}
            for case in lines(f"BFCL_v4_{category}.json"):
                asked = case["question"][0][-1]["content"]
                truth = answers[case["id"]]
                self.turns[asked] = (
                    truth if category.startswith("multi_turn") else [[_keywords(call) for call in truth]]
                )

    def answer(self, prompt):
        """The calls of the turn that the prompt ends with; after their results, a word that ends the turn."""
        users = [text for text in USER.findall(prompt) if not text.lstrip().startswith("<tool_response>")]
        if prompt.rstrip().removesuffix("<|im_start|>assistant").rstrip().endswith("</tool_response><|im_end|>"):
            return "That is done."
        calls = self.turns[users[0]][len(users) - 1]
        return "\n".join(f"<tool_call>\n{json.dumps(_call(call, prompt))}\n</tool_call>" for call in calls)


def _keywords(call):
    """{name: {argument: [right values]}}: the first right value; an argument that may be left out is."""
    ((name, arguments),) = call.items()
    return {"name": name, "arguments": {key: options[0] for key, options in arguments.items() if options[0] != ""}}


def _call(call, prompt):
    """`f('x', b=2)` of a multi-turn case, its positions named by the tool's own parameters as the prompt shows them."""
    if isinstance(call, dict):
        return call
    tree = ast.parse(call, mode="eval").body
    name = ast.unparse(tree.func)
    shown = [json.loads(line) for line in prompt.splitlines() if line.startswith('{"name": "')]
    names = next((list(tool["parameters"]["properties"]) for tool in shown if tool["name"] == name), [])
    arguments = {key: ast.literal_eval(value) for key, value in zip(names, tree.args, strict=False)}
    arguments |= {keyword.arg: ast.literal_eval(keyword.value) for keyword in tree.keywords}
    return {"name": name, "arguments": arguments}


@contextmanager
def serving(answer, key=None, bodies=None, models_status=200):
    """`answer(prompt)` is a text, or an HTTP status to fail with; whoever lacks the `key` is refused. Yields the URL
    and the prompts so far; `bodies` is a list for the requests whole; the list of models has `models_status`."""
    prompts = []

    class Server(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            self._send_to_the_known(models_status, {"object": "list", "data": [{"id": "gold", "object": "model"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompts.append(body["prompt"])
            if bodies is not None:
                bodies.append(body)
            said = answer(body["prompt"])
            if isinstance(said, int):
                self._send_to_the_known(said, {"error": {"message": f"status {said}"}})
                return
            choice = {"index": 0, "text": said, "finish_reason": "stop", "logprobs": None}
            usage = {"prompt_tokens": 1, "completion_tokens": len(said.split()), "total_tokens": 2}
            self._send_to_the_known(
                200,
                {"id": "x", "object": "text_completion", "created": 0, "model": body["model"], "choices": [choice]}
                | {"usage": usage},
            )

        def _send_to_the_known(self, status, value):
            known = key is None or self.headers.get("Authorization") == f"Bearer {key}"
            self._send(*((status, value) if known else (401, {"error": {"message": "who are you?"}})))

        def _send(self, status, value):
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", prompts
    finally:
        server.shutdown()
        server.server_close()
