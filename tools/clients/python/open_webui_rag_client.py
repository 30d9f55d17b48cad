"""The HTTP requests of Open WebUI's retrieval: embeddings of a list of texts, and an external reranker."""

import requests
from trip import MODEL, ROOT, V1, check

TEXTS = ["the tide goes out", "bread is baked in an oven"]
HEADERS = {"Authorization": "Bearer none", "X-OpenWebUI-User-Name": "someone", "X-OpenWebUI-User-Role": "user"}


def post(url: str, **body: object) -> dict:
    """Return the JSON of a reply, which must be a success."""
    reply = requests.post(url, json=body, headers=HEADERS, timeout=60)
    reply.raise_for_status()
    return reply.json()


vectors = [entry["embedding"] for entry in post(f"{V1}/embeddings", input=TEXTS, model=MODEL)["data"]]
check([len(vector) for vector in vectors], [64, 64])
check(post(f"{V1}/embeddings", input=[TEXTS[1]], model=MODEL)["data"][0]["embedding"], vectors[1])
for url in (f"{V1}/rerank", f"{ROOT}/rerank"):
    results = post(url, model=MODEL, query=TEXTS[1], documents=TEXTS, top_n=2)["results"]
    scores = [result["relevance_score"] for result in sorted(results, key=lambda result: result["index"])]
    check(len(scores), 2)
    check(round(scores[1], 5), 1.0)
