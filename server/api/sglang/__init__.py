"""SGLang's /generate."""
