"""Models of the Hugging Face Hub by name: choice of files, resumable download, and the local cache."""
