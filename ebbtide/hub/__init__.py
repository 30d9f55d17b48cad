"""Models of the Hugging Face Hub: selection of the files, resumable download, and the local cache."""
