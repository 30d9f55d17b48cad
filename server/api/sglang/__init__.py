"""The route /generate of SGLang's API."""
