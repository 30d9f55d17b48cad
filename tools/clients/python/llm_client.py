"""The program ``llm``, with the daemon as an OpenAI-compatible model."""

import os
import subprocess
import sys
from pathlib import Path

from trip import ASK_HELLO, HELLO, MODEL, V1, check

folder = Path("llm").resolve()
folder.mkdir()
(folder / "extra-openai-models.yaml").write_text(
    f"- {{model_id: tide, model_name: {MODEL}, api_base: {V1}, api_key_name: tide}}\n"
)
(folder / "keys.json").write_text('{"tide": "none"}')
program = Path(sys.executable).with_name("llm")
for options in ([], ["--no-stream"]):
    done = subprocess.run(
        [program, "-m", "tide", *options, ASK_HELLO],
        env=os.environ | {"LLM_USER_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    check(done.stdout.strip(), HELLO)
