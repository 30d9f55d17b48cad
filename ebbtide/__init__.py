"""ebbtide: an LLM serving daemon that retracts under memory pressure and resumes with the same output."""

__version__ = "0.1.0"
