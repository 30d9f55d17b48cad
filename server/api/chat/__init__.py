"""Chat requests in the form that every chat API is mapped to."""
