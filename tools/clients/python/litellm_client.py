"""LiteLLM: its SDK over three routes, and its proxy in front of the daemon."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import litellm
import openai
from trip import ASK_HELLO, HELLO, MODEL, ROOT, V1, check

hello = [{"role": "user", "content": ASK_HELLO}]
for name, base in ((f"openai/{MODEL}", V1), (f"hosted_vllm/{MODEL}", V1), (f"anthropic/{MODEL}", ROOT)):
    options = {"model": name, "api_base": base, "api_key": "none", "max_tokens": 500}
    check(litellm.completion(messages=hello, **options).choices[0].message.content, HELLO)
    chunks = litellm.completion(messages=hello, stream=True, **options)
    check("".join(chunk.choices[0].delta.content or "" for chunk in chunks), HELLO)

with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    port = str(taken.getsockname()[1])
settings = Path("config.yaml")
settings.write_text(
    f"model_list: [{{model_name: tide, litellm_params: {{model: openai/{MODEL}, api_base: {V1}, api_key: none}}}}]\n"
)
program = Path(sys.executable).with_name("litellm")
log = open("proxy.log", "w")  # noqa: SIM115 (until the script ends)
proxy = subprocess.Popen([program, "--config", settings, "--port", port], stdout=log, stderr=log, env=os.environ.copy())
try:
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            if httpx.get(f"{url}/health/liveliness").status_code == 200:
                break
        except httpx.TransportError:
            pass
        if proxy.poll() is not None:
            raise RuntimeError(Path("proxy.log").read_text()[-2000:])
        time.sleep(0.2)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-none")
    check(client.chat.completions.create(model="tide", messages=hello).choices[0].message.content, HELLO)
    stream = client.chat.completions.create(model="tide", messages=hello, stream=True)
    check("".join(chunk.choices[0].delta.content or "" for chunk in stream), HELLO)
finally:
    proxy.terminate()
    proxy.wait(30)
